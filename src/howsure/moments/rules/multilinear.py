"""Sums of products of any number of operands: `einsum` and bilinear layers, exactly.

For independent operands the variance of a multilinear form is a sum over the non-empty sets S of
random operands (Hoeffding's decomposition): contract the means of all others, square, and contract
with the variances of those in S.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from howsure.moments.rule import Draw, Sample, rule_of
from howsure.moments.rules.powers import square
from howsure.moments.value import Moments, mean_of, var_of, variance_dtype


@dataclass(frozen=True)
class Term:
    """One operand: its moments or value, and a letter for each dimension."""

    operand: Moments | Tensor
    letters: str

    def contracted(self, field: Tensor) -> tuple[Tensor, str]:
        """`field`, of the operand's shape, without the dimensions that broadcast."""
        keep = tuple(slice(None) if letter != "_" else 0 for letter in self.letters)
        return field[keep], self.letters.replace("_", "")


def multilinear(equation: str, operands: Sequence[Moments | Tensor]) -> Moments:
    """Moments of `torch.einsum(equation, *operands)` for independent operands."""
    mean = torch.einsum(equation, *(mean_of(operand) for operand in operands))
    terms, output = _terms(equation, operands)
    terms, squares = _with_squares(terms)
    random = [i for i, term in enumerate(terms) if isinstance(term.operand, Moments)]
    sets = (each for n in range(1, len(random) + 1) for each in itertools.combinations(random, n))
    var = torch.stack([_part(terms, output, each, mean) for each in sets]).sum(0)
    if squares:
        # A squared operand moves the mean by its variance.
        mean = _contract([term.contracted(mean_of(term.operand)) for term in terms], output)
    return Moments(mean, var)


def _part(terms: list[Term], output: str, chosen: tuple[int, ...], like: Tensor) -> Tensor:
    """The variance that the `chosen` operands cause together."""
    dtype = variance_dtype(like.dtype)
    spread = [terms[i].contracted(var_of(terms[i].operand)) for i in chosen]
    others = [term for i, term in enumerate(terms) if i not in chosen]
    if not others:
        return _contract(spread, output)
    fixed = [term.contracted(mean_of(term.operand).to(dtype)) for term in others]
    needed = set(output).union(*(letters for _, letters in spread))
    kept = "".join(sorted(needed & set().union(*(letters for _, letters in fixed))))
    return _contract([(_contract(fixed, kept).square(), kept), *spread], output)


def _contract(factors: Sequence[tuple[Tensor, str]], output: str) -> Tensor:
    equation = ",".join(letters for _, letters in factors) + "->" + output
    return torch.einsum(equation, *(tensor for tensor, _ in factors))


def _with_squares(terms: list[Term]) -> tuple[list[Term], bool]:
    """The terms with a tensor that occurs twice with the same letters replaced by its square."""
    kept: list[Term] = []
    for term in terms:
        twins = [i for i, seen in enumerate(kept) if seen.operand is term.operand]
        same = [i for i in twins if kept[i].letters == term.letters]
        if same and isinstance(term.operand, Moments):
            kept[same[0]] = Term(square(term.operand), term.letters)
        else:
            kept.append(term)
    return kept, len(kept) < len(terms)


def _terms(equation: str, operands: Sequence[Moments | Tensor]) -> tuple[list[Term], str]:
    """Operands with their letters and the output's letters; ellipses are spelled out.

    A dimension of size 1 that broadcasts against a longer one gets the letter `_`: its element
    enters every summand and is therefore not summed over.
    """
    shapes = [mean_of(operand).shape for operand in operands]
    inputs, _, output = equation.replace(" ", "").partition("->")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    named = inputs.split(",")
    extra = [len(s) - len(n.replace("...", "")) for s, n in zip(shapes, named, strict=True)]
    widest = max((e for e, n in zip(extra, named, strict=True) if "..." in n), default=0)
    ellipsis = "".join(spare[:widest])
    letters = [
        n.replace("...", ellipsis[widest - e :] if "..." in n else "")
        for n, e in zip(named, extra, strict=True)
    ]
    if "->" not in equation:
        once = sorted(c for c in set("".join(letters)) - set(ellipsis) if inputs.count(c) == 1)
        output = "..." + "".join(once)
    sizes: dict[str, int] = {}
    for names, shape in zip(letters, shapes, strict=True):
        for letter, size in zip(names, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    terms = [
        Term(operand, "".join(c if n == sizes[c] else "_" for c, n in zip(names, s, strict=True)))
        for operand, names, s in zip(operands, letters, shapes, strict=True)
    ]
    return terms, output.replace("...", ellipsis)


def _equations(draw: Draw) -> Iterable[Sample]:
    yield Sample("bij,bjk->bik", draw.moments(2, 3, 4), draw.moments(2, 4, 2))
    yield Sample("...d,ed->...e", draw.moments(2, 3, 4), draw.constant(2, 4))
    yield Sample("i,j->", draw.moments(3), draw.moments(4))
    yield Sample("ij,j", draw.constant(3, 4), draw.moments(4))
    yield Sample("ii->i", draw.moments(3, 3))
    yield Sample("bi,oij,bj->bo", draw.moments(2, 3), draw.constant(2, 3, 4), draw.moments(2, 4))
    yield Sample("a,ab,b->", draw.moments(2), draw.moments(2, 3), draw.moments(3))
    yield Sample("bi,bi->b", draw.moments(2, 1), draw.moments(2, 3))
    twice = draw.moments(2, 3)
    yield Sample("bi,bi->b", twice, twice)


def _only_reorders(equation: str, *operands: object) -> bool:
    """Whether `einsum` sums nothing: of one tensor, torch then returns a view."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(c for c in inputs if c == "." or inputs.count(c) == 1)
    return "," not in inputs and set(inputs) == set(output)


@rule_of("einsum", inplace=False, samples=_equations, views=_only_reorders)
def einsum(equation: str, *operands: Any, path: object = None) -> Moments:
    """Var = sum over sets S of operands of einsum(einsum(means not in S)**2, variances in S).

    Assumes: different tensors are independent; exact then, for any number of operands. The same
    tensor twice with the same letters is a square.

    Source: Hoeffding 1948, for multilinear forms.
    """
    listed = len(operands) == 1 and isinstance(operands[0], (list, tuple))
    return multilinear(equation, operands[0] if listed else operands)


def _pairs(draw: Draw) -> Iterable[Sample]:
    weight, bias = draw.constant(2, 3, 4), draw.constant(2)
    yield Sample(draw.moments(2, 3), draw.moments(2, 4), weight, bias)
    yield Sample(draw.moments(5, 2, 3), draw.constant(5, 2, 4), weight)
    yield Sample(draw.moments(2, 3), draw.moments(2, 4), draw.moments(2, 3, 4))


@rule_of("bilinear", inplace=False, samples=_pairs)
def bilinear_layer(
    input1: Moments | Tensor,  # (*batch, in1)
    input2: Moments | Tensor,  # (*batch, in2)
    weight: Moments | Tensor,  # (out, in1, in2)
    bias: Tensor | None = None,  # (out,)
) -> Moments:
    """E = m1' W m2 + b, Var = v1' (W m2)**2 + (m1' W)**2 v2 + v1' W**2 v2.

    Assumes: independent inputs; exact then.

    Source: `einsum`.
    """
    out = multilinear("...i,oij,...j->...o", (input1, weight, input2))
    mean = F.bilinear(mean_of(input1), mean_of(input2), mean_of(weight), bias)
    return Moments(mean, out.var)
