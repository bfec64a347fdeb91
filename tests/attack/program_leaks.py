"""Steps of random programs by which a value leaves the graph."""

from __future__ import annotations

import copy

import numpy as np
import torch
from program_steps import STEPS, Step, under


def _into_a_buffer(h, m):
    m.canvas.resize_(h.shape).copy_(h.detach())
    return torch.tanh(m.canvas @ m.w)


def _into_storage(h, m):
    y = torch.zeros_like(h)
    y.data_ptr()
    y.untyped_storage().copy_(h.detach().contiguous().untyped_storage())
    return y * 2


def _branch(h, m):
    return h if h.sum() > 0 else -2 * h


def _row_branch(h, m):
    return torch.stack([row if row[0] > 0 else -2 * row for row in h])


def _set_data(h, m):
    y = torch.zeros_like(h)
    y.data = h.data
    return y + 1


# Ways for a value to leave the graph. Numbers that are taken out of a call belong to all its rows.
LEAKS = {
    "item": Step(lambda h, m: h * h.mean().item(), rows=False),
    "float": Step(lambda h, m: h + float(h[0, 0]), rows=False),
    "int": Step(lambda h, m: h + int(10 * h[0, 0]), rows=False, is_flat=True),
    "tolist": Step(lambda h, m: torch.tensor(h.tolist(), dtype=h.dtype) @ m.w),
    "numpy": Step(lambda h, m: torch.from_numpy(h.detach().numpy() * 2)),
    "numpy that needs no gradient": Step(lambda h, m: torch.from_numpy(h.numpy() * 2)),
    "asarray": Step(lambda h, m: torch.as_tensor(np.tanh(np.asarray(h.detach())))),
    "tensor": Step(lambda h, m: torch.tensor(h) * 2),
    "copied tensor": Step(lambda h, m: h.new_tensor(h) * 2),
    "dlpack": Step(lambda h, m: torch.from_dlpack(h.detach()) * 2),
    "frombuffer": Step(
        lambda h, m: torch.frombuffer(
            bytearray(h.detach().contiguous().numpy().tobytes()), dtype=h.dtype
        ).reshape(h.shape)
    ),
    "mask": Step(lambda h, m: h * (h > 0)),
    "mask to numbers": Step(lambda h, m: (h > 0).to(h.dtype) + 0.1 * h, is_flat=True),
    "where": Step(lambda h, m: torch.where(h > 0.2, h, h.new_tensor(0.2))),
    "data": Step(lambda h, m: h.data * 2),
    "data set": Step(_set_data),
    "detach_": Step(lambda h, m: (h * 1).detach_() * 2),
    "buffer": Step(_into_a_buffer),
    "storage": Step(_into_storage),
    "if": Step(_branch, rows=False, is_flat=True),
    "if of a row": Step(_row_branch, is_flat=True),
    "nonzero": Step(lambda h, m: h * (1 + (h > 0).nonzero().shape[0]), rows=False, is_flat=True),
    "index of a maximum": Step(lambda h, m: h.gather(1, h.argmax(1, True)) + 0.2 * h),
    "long": Step(lambda h, m: (4 * h).long().to(h.dtype) / 4 + 0.1 * h, is_flat=True),
    "string": Step(lambda h, m: h * float(f"{float(h.sum()):.6f}"), rows=False),
    "deepcopy": Step(lambda h, m: copy.deepcopy(h.detach()) * 2),
    "requires_grad_": Step(lambda h, m: h.detach().requires_grad_() * 2),
    "set_grad_enabled": Step(under(lambda: torch.set_grad_enabled(False))),
}
ALL = {**STEPS, **LEAKS}
