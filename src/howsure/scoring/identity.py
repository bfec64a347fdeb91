"""What a run is about: everything that decides the numbers, as digests."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from typing import Any

import torch

from howsure import noise as noises
from howsure.scoring.digest import digest
from howsure.scoring.plan import Plan
from howsure.scoring.shard import Scorer
from howsure.uncertain import Uncertain

_FORMAT = 1  # of shards and manifest
# Fields of a setup that are digested in another way.
_NOT_PLAIN = ("model", "noise", "rules")


def manifest_of(scorer: Scorer, plan: Plan) -> dict[str, Any]:
    """The manifest; a run that differs in any entry is another run."""
    model = scorer.sure.model
    return {
        "format": _FORMAT,
        "data": scorer.source.fingerprint(),
        "weights": digest(model.state_dict()),
        "model": digest([type(model).__qualname__, model]),
        "settings": digest(_settings(scorer.sure)),
        "rows": plan.rows,
        "batch": plan.batch,
        "shard_rows": plan.shard_rows,
        "level": scorer.level,
        "torch": str(torch.__version__),
        "howsure": version("howsure"),
    }


def _settings(sure: Uncertain) -> list[Any]:
    setup = sure.setup
    # What begins with an underscore is a cache, which fills while the model runs.
    names = [f.name for f in fields(setup) if not f.name.startswith("_")]
    plain = {name: getattr(setup, name) for name in names if name not in _NOT_PLAIN}
    calibrators = [calibrator.state() for calibrator in sure.calibrators]
    rules = [rule.name for rule in (setup.rules or {}).values()]
    compiled = sure._compiled is not None  # rounds in another way
    return [sure.method, plain, _noise(setup.noise), calibrators, rules, compiled]


def _noise(noise: Any) -> Any:
    try:
        return noises.to_config(noise)
    except TypeError:  # a function, known by its name
        return noise
