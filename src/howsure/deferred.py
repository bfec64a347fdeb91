"""Fields of a frozen dataclass that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class _Later:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._value: Any = None

    def __call__(self) -> Any:
        """The value; from then on, what it was computed from is not kept."""
        if (make := self._make) is not None:  # Another thread may be as far.
            with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
                self._value = make()
            self._make = None
        return self._value

    def __getstate__(self) -> dict[str, object]:
        """What a copy has: the value."""
        return {"_make": None, "_value": self()}


def later(make: Callable[[], Any]) -> Any:
    """A value of a field that `may_be_later`, computed when it is first read from what is ours."""
    return _Later(make)


class _LaterField:
    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        value = instance.__dict__[self.name] if instance is not None else self
        return value() if type(value) is _Later else value

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__[self.name] = value


def may_be_later(*names: str) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass some of whose fields take what comes `later`, and give the values."""

    def with_fields(kind: type[T]) -> type[T]:
        for name in names:
            setattr(kind, name, _LaterField(name))
        return kind

    return with_fields


def as_is(whole: object, name: str) -> Any:
    """A field that `may_be_later`, for another such field: its value, or what computes it."""
    return whole.__dict__[name]


def changed(whole: T, **changes: object) -> T:
    """`dataclasses.replace` that computes nothing: what comes later still does."""
    new = object.__new__(type(whole))
    new.__dict__.update(whole.__dict__, **changes)
    return new
