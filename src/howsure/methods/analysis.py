"""The moments of all outputs and where their variance comes from: the core of the adjoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsure.adjoint import Reading, read
from howsure.call_site import CallSites
from howsure.dropout import DropoutMode, Site
from howsure.methods.passes import Pass
from howsure.methods.pieces import pieces
from howsure.methods.plain_ledger import PlainLedger
from howsure.methods.setup import Setup
from howsure.propagation import outcome, run
from howsure.sites import LedgerInterpreter, RowsMixedError, UndrawnMask
from howsure.squares import layers_of_variances_in
from howsure.structure import Parts

# One backward pass per output: beyond this, sampling is cheaper.
MOST_OUTPUTS = 64


@dataclass(frozen=True, eq=False)
class Analysis:
    """All outputs of all inputs, flat, and the variance of the chosen ones by source.

    Attributes:
        mean: Expected outputs, (batch, outputs).
        forward_var: Variances that the forward pass itself knows, (batch, outputs).
        chosen: The outputs whose variance was read by a backward pass.
        names: The sources of noise.
        kinds: "input" or "dropout" for each.
        reading: Their parts of the variance, and the remainder.
        run: The pass of the first piece, which knows the output's structure.
    """

    mean: Tensor
    forward_var: Tensor
    chosen: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    reading: Reading
    run: Pass

    def by_kind(self, kind: str) -> Tensor:
        """First-order variance of all sources of a kind, (batch, chosen outputs)."""
        zero = torch.zeros_like(self.reading.data_remainder)
        parts = zip(self.kinds, self.reading.by_source, strict=True)
        return sum((var for each, var in parts if each == kind), zero)


def analyse(setup: Setup, x: Any) -> Analysis:
    """One forward pass with probes, and one backward pass for every chosen output."""
    sites = () if setup.rate is None and not _own_dropout(setup, x) else setup.sites(x)
    names = tuple(name for name, _ in noisy_inputs(x, setup.variance(x)))

    def in_pieces(size: int | None) -> list[Analysis]:
        return [
            _piece(setup, Pass(setup, rows), variance, sites, names)
            for rows, variance in pieces(x, setup.variance(x), size)
        ]

    with torch.inference_mode(False), torch.enable_grad():
        try:
            parts = in_pieces(setup.chunk)
        except RowsMixedError:
            parts = in_pieces(1)
    return parts[0] if len(parts) == 1 else _joined(parts)


def _own_dropout(setup: Setup, x: Any) -> bool:
    """Whether the dropout that the model came with is to be used."""
    if setup.placement.kind != "existing":
        return False
    return all(site.rate is not None for site in setup.sites(x))


def _piece(
    setup: Setup, run_: Pass, variance: Any, sites: Sequence[Site], names: tuple[str, ...]
) -> Analysis:
    places = CallSites(setup.model)
    rates = setup.rates(tuple(sites)) if sites else ()
    both = bool(names) and any(rates) and setup.probes > 1
    kind = LedgerInterpreter if setup.probes else PlainLedger
    ledger = kind(
        setup.rules,
        places,
        setup.fallback,
        count=setup.probes,
        seed=setup.seed,
        names=names,
        of_sensors=setup.probes // 2 if both else None,
    )
    masks: list[Any] = [
        UndrawnMask(ledger, site.name, site.units, rate) if rate else None
        for site, rate in zip(sites, rates, strict=True)
    ]
    precision = layers_of_variances_in(setup.variance_dtype)
    with precision, DropoutMode(setup.model, sites, masks) as mode:
        output = run(setup.model, run_.x, variance, ledger)
    mode.check_all_used()
    result = outcome(run_.finished(output), ledger.notes)
    run_.parts, run_.notes = Parts(result.mean), result.notes
    mean, var = (_flat(Parts(tree).tensors) for tree in (result.mean, result.var))
    chosen = chosen_outputs(setup, mean.shape[1])
    reading = read(mean, ledger, chosen)
    kinds = tuple(source.kind for source in ledger.sources)
    named = tuple(source.name for source in ledger.sources)
    return Analysis(mean.detach(), var.detach(), chosen, named, kinds, reading, run_)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All outputs of an input in one row."""
    return torch.cat([tensor.reshape(tensor.shape[0], -1) for tensor in tensors], 1)


def chosen_outputs(setup: Setup, count: int) -> tuple[int, ...]:
    """The outputs that get a backward pass; an error where that is too many."""
    if setup.outputs is not None:
        wrong = [index for index in setup.outputs if not -count <= index < count]
        if wrong:
            raise ValueError(f"`outputs` names {wrong[0]}, but there are {count} outputs.")
        return tuple(index % count for index in setup.outputs)
    if count > MOST_OUTPUTS:
        raise ValueError(
            f"The model has {count} outputs per input, and this method needs a backward pass for "
            f"each; it does up to {MOST_OUTPUTS}. Choose some with `outputs=(0, 5, ...)` (indices "
            "into the flattened output; the others get the variance of the probes); take the "
            "probes alone with `outputs=(), probes=32`; or sample with "
            '`method="noise_sampling"`.'
        )
    return tuple(range(count))


def noisy_inputs(x: Any, variance: Any, name: str = "x") -> Iterator[tuple[str, Tensor]]:
    """The noisy inputs and their names, in the order in which they enter."""
    if variance is None:
        return
    if isinstance(x, Tensor):
        yield name, x
    elif isinstance(x, dict):
        for key, item in x.items():
            yield from noisy_inputs(item, variance.get(key), str(key))
    else:
        for index, (item, var) in enumerate(zip(x, variance, strict=True)):
            yield from noisy_inputs(item, var, f"{name}[{index}]")


def _joined(parts: Sequence[Analysis]) -> Analysis:
    """One analysis of all pieces."""
    first = parts[0]
    readings = [part.reading for part in parts]

    def columns(name: str) -> list[Tensor]:
        lists = (getattr(reading, name) for reading in readings)
        return [torch.cat(column) for column in zip(*lists, strict=True)]

    reading = Reading(
        columns("by_source"),
        columns("elements"),
        columns("slopes"),
        torch.cat([reading.data_remainder for reading in readings]),
        torch.cat([reading.model_remainder for reading in readings]),
        torch.cat([reading.covariance for reading in readings]),
    )
    mean, var = (torch.cat([getattr(p, n) for p in parts]) for n in ("mean", "forward_var"))
    return Analysis(mean, var, first.chosen, first.names, first.kinds, reading, first.run)
