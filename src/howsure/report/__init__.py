"""A report as one HTML file that opens from disk; see docs/report.md.

Examples:
    >>> model, x = nn.Linear(3, 1).eval(), torch.randn(60, 3)
    >>> target = model(x).detach() + 0.1 * torch.randn(60, 1)
    >>> sure = hs.Uncertain(model, noise=hs.noise.std(0.1))
    >>> hs.report(sure, [(x, target)], "report.html", show_progress=False).name
    'report.html'
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from howsure.report.evaluation import build as build
from howsure.report.evaluation import from_predictions as from_predictions
from howsure.report.options import Options as Options
from howsure.report.page import to_html as to_html
from howsure.report.page import write as write
from howsure.report.reproduce import decoded as decoded
from howsure.report.values import Report as Report

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain


class _CallableModule(ModuleType):
    """This module, which is also the function that does it all in one call."""

    Options = Options
    Report = Report
    build = staticmethod(build)
    decoded = staticmethod(decoded)
    from_predictions = staticmethod(from_predictions)
    to_html = staticmethod(to_html)
    write = staticmethod(write)

    def __call__(
        self,
        sure: Uncertain,
        data: Iterable[object],
        path: str | Path = "report.html",
        *,
        options: Options | None = None,
        audit: object = None,
        show_progress: bool = True,
    ) -> Path:
        """Builds the report on held-out data, writes it, and returns its path; see `build`."""
        chosen = Options() if options is None else options
        built = build(sure, data, options=chosen, audit=audit, show_progress=show_progress)
        return write(path, built)


sys.modules[__name__].__class__ = _CallableModule
report = cast(_CallableModule, sys.modules[__name__])
