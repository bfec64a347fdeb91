"""The settings of an `Uncertain` as a JSON file: what `fit` found, for the other commands."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from howsure.cli.result import plain
from howsure.files import write_atomically
from howsure.fit import FitResult
from howsure.noise import encode
from howsure.report import decoded
from howsure.uncertain import Uncertain

_FORMAT = "howsure settings 1"
# Numbers that a text may hold: 20 MB.
_MOST_NUMBERS = 1_000_000


def write_settings(path: Path, sure: Uncertain, fit: FitResult | None = None) -> None:
    """Writes settings, and beside them how they were found; a `.pt` has the settings alone."""
    _check_size(path, sure)
    if path.suffix == ".pt":
        sure.save(path)
        return
    content = {
        "format": _FORMAT,
        "uncertain": encode(sure.get_extra_state()),
        "fit": None if fit is None else plain(fit.to_dict()),
    }
    text = json.dumps(content, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text), text=True)


def _check_size(path: Path, sure: Uncertain) -> None:
    """A posterior of many masks does not belong into a text."""
    model = sure.setup.variance_model
    numbers = 0 if model is None or model.posterior is None else model.posterior.whitening.numel()
    if path.suffix == ".json" and numbers > _MOST_NUMBERS:
        raise ValueError(
            f"The posterior has {numbers:,} numbers, too many for a `.json`; give "
            f"`--out {path.with_suffix('.pt')}`."
        )


def read_settings(name: str, model: nn.Module) -> Uncertain:
    """A model with the settings of a file of `howsure fit`, or of `Uncertain.save`."""
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}` with settings.")
    if path.suffix != ".json":
        return Uncertain.load(path, model)
    sure = Uncertain(model)
    try:
        sure.set_extra_state(decoded(_content(path)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The settings in `{path}` are not complete ({type(error).__name__}: {error}); they "
            "must be what `howsure fit --out` wrote."
        ) from None
    return sure


def _content(path: Path) -> object:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"`{path}` is not a file that `howsure fit --out` wrote.")
    return content["uncertain"]
