"""Probes: random directions that carry correlations along with the mean.

Every activation has K directions F_k beside its mean, a random square root of its covariance:
var = sum_k F_k**2, cov(x, y) = sum_k F_k(x) F_k(y). At the input F_k = sqrt(v / K) times random
signs. An operation maps them by its statistically linearised Jacobian (`howsure.responses`), and
its innovation enters as new directions with fresh signs. No probes: the paper's propagation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsure.call_site import CallSites
from howsure.correlated import larger, product, rectified, smaller, square_sum
from howsure.gaussian import Gaussian, carriers, unwrap, wrap
from howsure.interpreter import RuleInterpreter
from howsure.linear_part import affine, is_affine, linearised
from howsure.moments import Moments
from howsure.probe_rules import HIDING, TAKEN_APART
from howsure.registry import Rule, Target
from howsure.responses import Call, Probed, Response, diagonal, general, pointwise
from howsure.signs import random_signs, without_batch

_OF_TWO = {"mul": product, "maximum": larger, "minimum": smaller}


class ProbeInterpreter(RuleInterpreter):
    """Propagation with probes: every operation by its rule's mean and that mean's derivative.

    Attributes:
        count: Number of probes K.
        seed: Seed of the signs.
        batch: Inputs in the batch; they share their signs, so that none depends on the others.
    """

    def __init__(
        self,
        overrides: Mapping[Target, Rule] | None,
        sites: CallSites,
        fallback: str = "error",
        *,
        count: int,
        seed: int = 0,
    ) -> None:
        super().__init__(overrides, sites, fallback)
        self.count = count
        self.seed = seed
        self.batch: int | None = None
        self.drawn = 0

    def enter(self, moments: Moments) -> Gaussian:
        """A noisy input as a carrier with probes."""
        if self.batch is None and moments.mean.dim():
            self.batch = moments.mean.shape[0]
        # A tensor of its own: a constant or an expanded one cannot be traced in a derivative.
        var = moments.var * torch.ones_like(moments.mean, dtype=moments.var.dtype)
        return wrap(self.sprayed(Moments(moments.mean, var)), self)

    def sprayed(self, moments: Moments) -> Probed:
        """Independent noise as probes."""
        directions = self.renewed(self.nothing(moments.mean), moments.var, moments.mean)
        return Probed(moments.mean, moments.var, None, directions)

    def nothing(self, like: Tensor) -> Tensor:
        """Directions of 0, to begin with."""
        return like.new_zeros((self.count, *[1] * like.dim()))

    def renewed(self, probes: Tensor, var: Tensor, like: Tensor) -> Tensor:
        """These directions and new independent ones of variance `var` in the shape of `like`."""
        seed, count = self.next_seed(), len(probes)
        if count == 0:
            return like.new_empty((0, *like.shape))
        shape = without_batch(like.shape, self.batch)
        signs = random_signs(count, shape, seed, like)
        return torch.addcmul(probes, (var / count).sqrt().to(like.dtype), signs)

    def apply(self, rule: Rule, func: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operation's responses say, as carriers."""
        if rule.takes_carriers:
            return rule.called_as(func)(*args, **kwargs)
        if self.count and rule.name in TAKEN_APART:
            result = TAKEN_APART[rule.name](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if rule.family in ("value only", "refused", "construction"):
            return super().apply(rule, func, args, kwargs)
        call = self.called(rule, torch.clone if func in HIDING else func, args, kwargs)
        if not call.inputs:
            return super().apply(rule, func, args, kwargs)
        return self.finished(self.respond(call), self.shared_memory(rule, func, args))

    def called(self, rule: Rule | None, func: Target, args: Any, kwargs: Any) -> Call:
        """The call with probed moments in place of carriers."""
        moments = unwrap((args, kwargs))
        if not all(isinstance(each.read(), Probed) for each in carriers((args, kwargs))):
            moments = pytree.tree_map(self.as_probed, moments)
        return Call(rule, func, *moments)

    def respond(self, call: Call) -> Any:
        """The responses of one call, in the structure of its result."""
        rule = call.rule
        if self.count == 0:
            return diagonal(call, self.next_seed, affine=is_affine(call))
        self.count_operations(1)
        if is_affine(call):
            return affine(call)
        if rule.name == "relu":
            return rectified(*call.inputs)
        if len(call.inputs) == 1 and (rule.pointwise or rule.name == "mul"):
            return pointwise(call)
        if len(call.inputs) == 2 and rule.name in _OF_TWO:
            return _OF_TWO[rule.name](*call.inputs)
        return general(call, (self.seed, self.drawn))

    def count_operations(self, count: int) -> None:
        """Signs go by the operations before: whoever takes a short way past some counts them."""
        self.drawn += count if self.count else 0

    def next_seed(self) -> tuple[int, ...]:
        """Another seed in every call."""
        self.drawn += 1
        return self.seed, self.drawn

    def finished(self, responses: Any, memory: Any = None) -> Any:
        """Carriers in place of responses; innovations become new directions."""
        if isinstance(responses, Response):
            return wrap(self.with_innovation(responses), self, memory)
        moments = pytree.tree_map(
            lambda leaf: self.with_innovation(leaf) if isinstance(leaf, Response) else leaf,
            responses,
        )
        return wrap(moments, self, memory)

    def with_innovation(self, response: Response) -> Probed:
        """The moments after an operation."""
        probes = response.probes
        if self.count == 0:
            assert response.var is not None
            return Probed(response.mean, response.var, None, probes)
        var = square_sum(probes)
        if response.innovation is not None:
            probes = self.renewed(probes, response.innovation, response.mean)
            var = var + response.innovation
        return Probed(response.mean, var, None, probes)

    def as_probed(self, leaf: Any) -> Any:
        """Moments that were made without probes: constants, and results of a fallback."""
        if not isinstance(leaf, Moments) or isinstance(leaf, Probed):
            return leaf
        return self.sprayed(leaf)

    def missing(self, func: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation without a rule; linearised, it pushes the probes like any other."""
        if self.fallback != "linearise":
            return super().missing(func, args, kwargs)
        self.fallen_back[(func, self.sites.here())] += 1
        return self.finished(linearised(self.called(None, func, args, kwargs)))
