"""The processes of `torch.distributed`, seen from one of them."""

from __future__ import annotations

from typing import Any

from torch import distributed

from howsure.fit.share import WHOLE, Share


def this_share() -> Share:
    """This process's share of the batches; all of them where there is one process."""
    if not distributed.is_available() or not distributed.is_initialized():
        return WHOLE
    return Share(distributed.get_rank(), distributed.get_world_size(), _gathered)


def _gathered(mine: list[Any]) -> list[list[Any]]:
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, mine)
    return parts
