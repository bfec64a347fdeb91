"""The ledger of noise sources without probes, where a mask costs three passes through memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsure.gaussian import Gaussian
from howsure.responses import Probed, Response
from howsure.sites import LedgerInterpreter, UndrawnMask


class PlainLedger(LedgerInterpreter):
    """A ledger whose variances are those of the rules, for independent elements."""

    def dropped(self, data: Any, mask: UndrawnMask) -> Gaussian:
        """The data times a mask, 1 +- sqrt(c): E = m, Var = v + c m**2 + c v, r = c v."""
        if not isinstance(data, Gaussian):
            return super().dropped(data, mask)
        x = self.as_probed(data.read())
        if mask.name not in self.masks:
            self.masks[mask.name] = self._mask(mask, x.mean)
        return self.finished(_masked(x, self.masks[mask.name].mean, mask.rate))


def _masked(x: Probed, ones: Tensor, rate: float) -> Response:
    """The response of data to a mask whose leaf is `ones`."""
    c = rate / (1 - rate)
    with torch.no_grad():
        mean = x.mean.detach().to(x.var.dtype)
        beyond = c * x.var
        var = torch.addcmul(x.var + beyond, mean, mean, value=c)
        none = x.mean.new_empty((0, *x.mean.shape))
    value: Any = _TimesOnes.apply(x.mean, ones)
    return Response(value, none, beyond, (), beyond, var)


class _TimesOnes(torch.autograd.Function):
    """x times a mask of ones: x itself, with the derivatives of a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ones: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        missing = x.dim() - ones.dim()
        shape = (1,) * missing + tuple(ones.shape)
        ctx.shape, ctx.missing = ones.shape, missing
        ctx.shared = [axis for axis, size in enumerate(shape) if size < x.shape[axis]]
        return x.detach()  # `view` would give a batch axis of size 1 another stride

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        product = gradients[0] * x
        summed = product.sum(ctx.shared, keepdim=True) if ctx.shared else product
        return gradients[0], summed.reshape(ctx.shape)
