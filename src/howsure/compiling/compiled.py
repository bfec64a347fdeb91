"""Compiled predictions, kept by input shape, with eager as the fallback."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree

from howsure.compiling.program import Run, TooWideError, compiled_method, tensors_of
from howsure.methods import METHODS
from howsure.prediction import Prediction
from howsure.setup import Setup


class Compiled:
    """Runs methods compiled; what cannot be compiled runs as it is, with one warning.

    Compiled code holds the weights and the settings as constants. When either changes it is made
    anew, which is seen by the setup's identity and the weights' versions.
    """

    def __init__(self) -> None:
        self.programs: dict[Any, Run | None] = {}
        self.made_for: Any = None
        self.setup: Setup | None = None

    def __call__(self, setup: Setup, method: str, x: Any) -> Prediction:
        """The method's prediction."""
        state = _versions(setup)
        # The setup itself is kept, so that its id cannot be taken by another one.
        if setup is not self.setup or state != self.made_for:
            self.programs, self.setup, self.made_for = {}, setup, state
        key = (method, _shapes(x))
        if key not in self.programs:
            self._report(key)
            self.programs[key] = _made(setup, method, x)
        program = self.programs[key]
        if program is None:
            return METHODS[method](setup, x)
        try:
            return program(x)
        except TooWideError:
            return self._without_assumptions(key, setup, method, x)

    def _without_assumptions(self, key: Any, setup: Setup, method: str, x: Any) -> Prediction:
        """The prediction by eager, which refuses wrong inputs, and another program from now on."""
        found = METHODS[method](setup, x)
        warnings.warn(
            "Compiling again, which takes a while: the noise inside the network is larger than "
            "for the inputs before.",
            stacklevel=4,
        )
        self.programs[key] = _made(setup, method, x, may_assume=False)
        return found

    def _report(self, key: Any) -> None:
        if self.programs:
            warnings.warn(
                f"Compiling again, which takes a while: the inputs {key[1][1]} are new to this "
                f"wrapper, which has {len(self.programs)} compiled shapes. Give batches of one "
                "size, or use `drop_last=True`.",
                stacklevel=4,
            )


def _made(setup: Setup, method: str, x: Any, *, may_assume: bool = True) -> Run | None:
    try:
        return compiled_method(setup, method, x, may_assume=may_assume)
    # The compiler's errors have no common class, and eager gives the same numbers.
    except Exception as error:
        # What is wrong with the input or the model is wrong in eager as well: let that say so.
        METHODS[method](setup, x)
        reason = str(error).strip().splitlines()
        warnings.warn(
            f'The method "{method}" runs uncompiled, as before `compile()`: '
            f"{type(error).__name__}, {reason[0] if reason else 'no reason given'}",
            stacklevel=5,
        )
        return None


def _versions(setup: Setup) -> tuple[tuple[int, int], ...]:
    """Which weights there are, and how often each was changed."""
    if not isinstance(setup.model, nn.Module):
        return ()
    tensors = [*setup.model.parameters(), *setup.model.buffers()]
    return tuple((id(t), 0 if t.is_inference() else t._version) for t in tensors)


def _shapes(x: Any) -> Any:
    """What a compiled program depends on: shapes, dtypes, devices, and all that is no tensor."""
    leaves, spec = pytree.tree_flatten(x)
    tensors = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors_of(leaves))
    others = tuple(repr(leaf) for leaf in leaves if not hasattr(leaf, "shape"))
    return str(spec), tensors, others
