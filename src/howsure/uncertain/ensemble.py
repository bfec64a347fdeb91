"""Several wrapped models as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from howsure.fit import FitResult
from howsure.fit.inputs import repeatable
from howsure.methods.ensemble import mixture
from howsure.prediction import Prediction, predict_all
from howsure.uncertain.wrapper import Uncertain


class Ensemble(nn.Module):
    """An equally weighted mixture of wrapped models (Lakshminarayanan et al. 2017).

    >>> p = Ensemble([first, second, third])(x)    # `model_var` is their disagreement
    >>> both = Ensemble([Uncertain(first, 0.01, rate=0.1), Uncertain(second, 0.01, method="adf")])
    >>> p = both(x)                                # here it includes their disagreement

    `state_dict` has every member's weights and settings under `members.0.`, `members.1.`, ...
    """

    def __init__(self, members: Sequence[Uncertain | nn.Module], **options: Any) -> None:
        """Collects the members.

        Args:
            members: Wrapped models; a plain model is wrapped as `Uncertain(model, **options)`.
            **options: As for `Uncertain`, for the plain models.
        """
        super().__init__()
        if not members:
            raise ValueError("An ensemble needs at least one member.")
        wrapped = [_wrapped(member, options, index) for index, member in enumerate(members)]
        self.members = nn.ModuleList(wrapped)
        for member in wrapped if len(wrapped) > 1 else ():
            member.may_be_certain = True  # Their disagreement is uncertainty enough.

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """The mixture's prediction for inputs given as to the models themselves."""
        members = [member for member in self.members if isinstance(member, Uncertain)]
        return mixture([member(*args, **kwargs) for member in members])

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Prediction:
            """As `forward`; `nn.Module` itself leaves the type open."""
            ...

    def __repr__(self) -> str:
        """How many members, and the first of them, in one line."""
        return f"Ensemble({len(self.members)} members, {self.members[0]!r} first)"

    def fit(self, data: Iterable[Any], targets: Any = None, **options: Any) -> list[FitResult]:
        """Fits every member by itself on the same held-out data; all as in `Uncertain.fit`."""
        # What is an iterator may be gone after one round.
        batches = list(data) if isinstance(data, Iterator) else data
        options = repeatable(options)
        members = [member for member in self.members if isinstance(member, Uncertain)]
        return [member.fit(batches, targets, **options) for member in members]

    @torch.no_grad()
    def predict(self, loader: Iterable[Any], *, show_progress: bool = True) -> Prediction:
        """As `Uncertain.predict`."""
        return predict_all(self, loader, show_progress=show_progress)


def _wrapped(member: Any, options: dict[str, Any], index: int) -> Uncertain:
    if isinstance(member, Uncertain):
        return member
    if not isinstance(member, nn.Module):
        raise TypeError(
            f"Member {index} of the ensemble is a {type(member).__name__}; give models or "
            "`Uncertain` wrappers."
        )
    seed = options.get("seed", 0) + index  # so that the members' masks are independent
    return Uncertain(member, **{**options, "seed": seed})
