"""Compiled predictions, kept by input shape, with eager as the fallback."""

from __future__ import annotations

import warnings
from dataclasses import fields
from operator import attrgetter, is_

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.deploy.compiling.program import (
    DoubtfulError,
    NotCompilableError,
    Run,
    TooWideError,
    compiled_method,
    tensors_of,
)
from howsure.deploy.compiling.watch import watch_over
from howsure.errors import HowsureWarning
from howsure.methods import Method
from howsure.prediction import Prediction
from howsure.setup import Setup
from howsure.values.contents import Opaque, Snapshot, Walk, contents_of

# What a program depends on besides its method: the structure of its input, shapes, dtypes and
# devices of its tensors, and all else; the last is `None` where no program can depend on it.
_Shapes = tuple[str, tuple[object, ...], tuple[object, ...] | None]
_Key = tuple[Method, _Shapes]


class Compiled:
    """Runs methods compiled; what cannot be compiled runs as it is, with one warning.

    Compiled code holds the weights, the settings and whatever else the trace has read as constants.
    Before every call they are compared, by value, with copies of what they were; when anything has
    changed the code is made anew.
    """

    def __init__(self) -> None:
        self.programs: dict[_Key, Run | None] = {}
        self.frozen: Frozen | None = None

    def __call__(self, setup: Setup, method: Method, x: object) -> Prediction:
        """The method's prediction."""
        if self.frozen is not None and not self.frozen.holds(setup):
            # What could not be compiled runs as it is, whatever has changed.
            self.programs = {key: run for key, run in self.programs.items() if run is None}
            self.frozen = None
        key = (method, _shapes(x))
        if key not in self.programs:
            self._report(key)
            self._add(key, setup, method, x)
        program = self.programs[key]
        if program is None or not _is_finite(x):  # Eager refuses NaN where it must.
            return method(setup, x)
        try:
            return program(x)
        except DoubtfulError:
            return method(setup, x)
        except TooWideError:
            return self._without_assumptions(key, setup, method, x)

    def _without_assumptions(
        self, key: _Key, setup: Setup, method: Method, x: object
    ) -> Prediction:
        """The prediction by eager, which refuses wrong inputs, and another program from now on."""
        found = method(setup, x)
        warnings.warn(
            "Compiling again, which takes a while: the noise inside the network is larger than "
            "for the inputs before.",
            HowsureWarning,
            stacklevel=4,
        )
        self._add(key, setup, method, x, may_assume=False)
        return found

    def _add(
        self, key: _Key, setup: Setup, method: Method, x: object, *, may_assume: bool = True
    ) -> None:
        """Makes the program of a key; what it has frozen is looked at afterwards.

        A model may count its calls, or keep tensors for the next.
        """
        made = _made(setup, method, x, may_assume=may_assume)
        if self.frozen is None or not self.frozen.holds(setup):
            self.programs = {key: run for key, run in self.programs.items() if run is None}
            self.frozen = Frozen(setup)
        self.programs[key] = made

    def _report(self, key: _Key) -> None:
        compiled = [run for run in self.programs.values() if run is not None]
        if compiled:
            warnings.warn(
                f"Compiling again, which takes a while: the inputs {key[1][1]} are new to this "
                f"wrapper, which has {len(compiled)} compiled shapes. Give batches of one "
                "size, or use `drop_last=True`.",
                HowsureWarning,
                stacklevel=4,
            )


class Frozen:
    """What a trace has read, as it was."""

    def __init__(self, setup: Setup) -> None:
        walk = _walk(setup)
        self.settings = _settings(setup)
        self.snapshot = Snapshot(walk.leaves)
        self.watch = watch_over(walk, self.snapshot)

    def holds(self, setup: Setup) -> bool:
        """Whether everything is still the same: untouched, or equal."""
        alike = all(map(is_, _settings(setup), self.settings))
        if alike and self.watch is not None and self.watch.holds():
            return True
        walk = _walk(setup)
        if not self.snapshot.holds(walk.leaves):
            return False
        self.settings, self.watch = _settings(setup), watch_over(walk, self.snapshot)
        return True

    def __getstate__(self) -> dict[str, object]:
        """What a copy has: contents, and no watch, which is over the objects of the original."""
        return {**vars(self), "watch": None}


def _made(setup: Setup, method: Method, x: object, *, may_assume: bool = True) -> Run | None:
    try:
        if _shapes(x)[2] is None:
            raise NotCompilableError("the input holds arrays or objects beside its tensors")
        return compiled_method(setup, method, x, may_assume=may_assume)
    # The compiler's errors have no common class, and eager gives the same numbers.
    except Exception as error:
        # What is wrong with the input or the model is wrong in eager as well: let that say so.
        method(setup, x)
        reason = str(error).strip().splitlines()
        warnings.warn(
            f'The method "{method}" runs uncompiled, as before `compile()`: '
            f"{type(error).__name__}, {reason[0] if reason else 'no reason given'}",
            HowsureWarning,
            stacklevel=5,
        )
        return None


_NAMES = tuple(field.name for field in fields(Setup) if not field.name.startswith("_"))
_settings = attrgetter(*_NAMES)


def _walk(setup: Setup) -> Walk:
    """The contents of the model and the settings, which a trace reads."""
    return Walk(dict(zip(_NAMES, _settings(setup), strict=True)))


def _shapes(x: object) -> _Shapes:
    """What a compiled program depends on: shapes, dtypes, devices, and all that is no tensor."""
    leaves, spec = pytree.tree_flatten(x)
    tensors = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors_of(leaves))
    others = [part for leaf in leaves if not isinstance(leaf, Tensor) for part in contents_of(leaf)]
    if any(isinstance(part, Tensor | np.ndarray | Opaque) for part in others):
        return str(spec), tensors, None  # to be frozen by no program
    return str(spec), tensors, tuple((type(part), part) for part in others)


def _is_finite(x: object) -> bool:
    floats = [t for t in tensors_of(pytree.tree_leaves(x)) if t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)
