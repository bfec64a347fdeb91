"""What a run is about: everything that decides the numbers, as digests."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version

import torch

from howsure.data.scoring.digest import digest
from howsure.data.scoring.plan import Plan
from howsure.data.scoring.shard import Scorer
from howsure.uncertain import Uncertain
from howsure.values.contents import contents_of

_FORMAT = 2  # of shards and manifest


def manifest_of(scorer: Scorer, plan: Plan) -> dict[str, object]:
    """The manifest; a run that differs in any entry is another run."""
    model = scorer.sure.model
    return {
        "format": _FORMAT,
        "data": scorer.source.fingerprint(),
        "weights": digest(model.state_dict()),
        "model": digest(contents_of(model)),
        "settings": digest(contents_of(_settings(scorer.sure))),
        "rows": plan.rows,
        "batch": plan.batch,
        "shard_rows": plan.shard_rows,
        "level": scorer.level,
        "torch": str(torch.__version__),
        "howsure": version("howsure"),
    }


def _settings(sure: Uncertain) -> list[object]:
    # What begins with an underscore is a cache, which fills while the model runs.
    names = [f.name for f in fields(sure.setup) if f.name != "model" and f.name[0] != "_"]
    settings = {name: getattr(sure.setup, name) for name in names}
    calibrators = [calibrator.state() for calibrator in sure.calibrators]
    compiled = sure._compiled is not None  # rounds in another way
    own = None if sure._method is None else sure._method.predict
    return [sure.method, own, settings, calibrators, compiled]
