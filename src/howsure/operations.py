"""Where in the model an operation is called, read off Python's own call stack.

No hooks: the model stays untouched, other threads that run it are not disturbed, and a pass that
meets no error pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property

from torch import nn
from torch.overrides import TorchFunctionMode

from howsure.isolation import ORIGINAL
from howsure.trees import unwrap_compiled


class CallSites:
    """Names the module of `model` that is running."""

    def __init__(self, model: Callable[..., object]) -> None:
        self.model = unwrap_compiled(model)

    @cached_property
    def paths(self) -> dict[int, str]:
        """Module paths by object."""
        if not isinstance(self.model, nn.Module):
            return {}
        return {id(module): path for path, module in self.model.named_modules()}

    def module_path(self) -> str | None:
        """The dotted path of the innermost running module; "" is the model itself."""
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                owner = owner.__dict__.get(ORIGINAL, owner)
                if id(owner) in self.paths:
                    return self.paths[id(owner)]
            frame = frame.f_back
        return None

    def here(self) -> str:
        """The running module in words, for messages."""
        path = self.module_path()
        if path is None:
            return "the model's function"
        return f"`{path}`" if path else f"the model's own `forward` ({type(self.model).__name__})"


class Operations(TorchFunctionMode):
    """Sees every operation of torch inside a `with` block, in its own thread alone.

    A hook would be seen by other threads, and stay behind if something fails.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """What the operation returns."""
        return self.operation(func, args, kwargs or {})

    def operation(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """What one operation returns."""
        return func(*args, **kwargs)
