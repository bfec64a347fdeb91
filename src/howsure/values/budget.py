"""Where a prediction's variance comes from: each sensor, each dropped layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

CONSTANT = "constant"


@dataclass(frozen=True, eq=False, repr=False)
class Budget:
    """The variance of every output by source.

    Attributes:
        names: The sources: inputs, dropped layers, the residual variance.
        kinds: What each is: "input", "dropout", "constant".
        variances: Variance by source, (sources, batch, outputs); outputs are flat, in the order
            of the model's output.
        elements: For each input with independent noise the variance by element, (batch, outputs,
            *input's shape).
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    variances: Tensor
    elements: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The largest sources and their shares, in one line."""
        rows = self.table()
        words = [f"{name} {100 * share:.0f} %" for name, _, _, share in rows[:3]]
        more = [f"{len(rows) - 3} more"] if len(rows) > 3 else []
        return f"Budget({', '.join([*words, *more])})"

    @staticmethod
    def joined(parts: Sequence[Budget], *, maps: bool = False) -> Budget:
        """The budget of all batches; the maps by element, which can be large, only if asked for."""
        first = parts[0]
        names = first.elements if maps else ()
        elements = {name: torch.cat([part.elements[name] for part in parts]) for name in names}
        variances = torch.cat([part.variances for part in parts], 1)
        return Budget(first.names, first.kinds, variances, elements)

    def of_rows(self, chosen: Tensor, rows: int) -> Budget | None:
        """The budget of some inputs; `None` if it is not by input."""
        if self.variances.shape[1] != rows:
            return None
        chosen = chosen.to(self.variances.device)
        elements = {name: each.index_select(0, chosen) for name, each in self.elements.items()}
        variances = self.variances.index_select(1, chosen)
        return Budget(self.names, self.kinds, variances, elements)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Budget:
        """The budget with a function applied to all its tensors."""
        elements = {name: change(each) for name, each in self.elements.items()}
        return Budget(self.names, self.kinds, change(self.variances), elements)

    def scaled(self, factor: Tensor) -> Budget:  # (batch, 1)
        """The budget of outputs whose variances are so many times as large."""
        elements = {
            name: each * factor.reshape(-1, *(1,) * (each.dim() - 1))
            for name, each in self.elements.items()
        }
        return Budget(self.names, self.kinds, factor * self.variances, elements)

    def with_constant(self, constant: Tensor) -> Budget:
        """The budget with a constant variance of every output, (batch, outputs)."""
        variances = torch.cat([self.variances, constant[None].to(self.variances)])
        names, kinds = (*self.names, CONSTANT), (*self.kinds, "constant")
        return Budget(names, kinds, variances, self.elements)

    @property
    def total(self) -> Tensor:
        """The sum over all sources: the prediction's total variance, (batch, outputs)."""
        return self.variances.sum(0)

    @property
    def shares(self) -> Tensor:
        """Each source's share of the total, (sources, batch, outputs); they sum to 1."""
        total = self.total
        return self.variances / torch.where(total > 0, total, torch.ones_like(total))

    def share(self, name: str) -> Tensor:
        """One source's share, (batch, outputs)."""
        if name not in self.names:
            raise ValueError(f"The budget has no source {name!r}; it has {list(self.names)}.")
        return self.shares[self.names.index(name)]

    def heatmap(self, name: str | None = None) -> Tensor:
        """Variance by element of an input, (batch, outputs, *input's shape): which pixels."""
        if not self.elements:
            raise ValueError(
                "There is no heat map: no input has noise that is independent between elements, or "
                "the budget is that of a whole loader; predict one batch by itself."
            )
        chosen = next(iter(self.elements)) if name is None else name
        if chosen not in self.elements:
            raise ValueError(f"The budget has no input {chosen!r}; it has {list(self.elements)}.")
        return self.elements[chosen]

    def table(self) -> list[tuple[str, str, float, float]]:
        """Name, kind, average variance and average share of every source, largest first."""
        variances, shares = (t.flatten(1).mean(1).tolist() for t in (self.variances, self.shares))
        rows = zip(self.names, self.kinds, variances, shares, strict=True)
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        """The table in text, with the total below."""
        rows = [(n, k, f"{v:.3g}", f"{100 * s:.1f} %") for n, k, v, s in self.table()]
        shares = float(self.shares.sum(0).mean())
        rows.append(("total", "", f"{float(self.total.mean()):.3g}", f"{100 * shares:.1f} %"))
        header = ("source", "kind", "variance", "share")
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(4)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
            for a, b, c, d in (header, *rows)
        )
