"""Operations that draw random numbers of their own."""

from __future__ import annotations

from torch.nn import functional as F

from howsure.moments.families import refuse

refuse(
    F.gumbel_softmax,
    name="gumbel_softmax",
    reason="`gumbel_softmax` draws random numbers of its own. Use `torch.softmax` at inference.",
)
