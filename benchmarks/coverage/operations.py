"""Which torch operations a model applies to noisy tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.overrides import TorchFunctionMode

from howsure.moments.interpreter import Gaussian
from howsure.moments.rule import operation_name


class OperationCount(TorchFunctionMode):
    """Counts the calls that involve a Gaussian; operations on constants need no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, Gaussian) for kind in types):
            self.calls[operation_name(func)] += 1
        return func(*args, **(kwargs or {}))
