"""The moment rules, one file per family of formulas; importing this package registers them all."""

from __future__ import annotations

import importlib
import pkgutil

from howsure.moments.rule import rule as rule

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
