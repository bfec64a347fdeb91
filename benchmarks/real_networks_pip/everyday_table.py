"""The table of networks on the page "Is it right for my model?", from the kept results."""

from __future__ import annotations

from statistics import median
from typing import Any

# How far a median ratio of std and true std may be off.
NEAR = 0.1


def table(results: dict[str, Any]) -> str:
    """What ran, how far off each std is, and why where it is not within 10 %."""
    rows = results["networks"]
    ran = {name: row for name, row in rows.items() if row["ok"]}
    good = [name for name, row in ran.items() if is_near(row)]
    environment = results["environment"]
    lines = [
        f"Of {len(rows)} networks, {len(ran)} run by default settings; for {len(good)} the std is "
        f"within {100 * NEAR:.0f} % of Monte Carlo. The median of the first call is "
        f"{median(row['first_seconds'] for row in ran.values()):.1f} s, on one thread of a busy "
        f"machine of two cores ({environment['date']}, torch {environment['packages']['torch']}).",
        "",
        "| network | package | outputs | method | first call | std / Monte Carlo |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(name, row, NOTES.get(name, "")) for name, row in rows.items()]
    return "\n".join(lines)


def is_near(row: dict[str, Any]) -> bool:
    """Whether the std is within 10 % of that of Monte Carlo, in the median over outputs."""
    return row["ok"] and abs(row["ratio"] - 1) <= NEAR


def _line(name: str, row: dict[str, Any], note: str) -> str:
    package = f"{row['package']} {row['version']}" if "package" in row else "–"
    if not row["ok"]:
        return f"| {name} | {package} | – | – | – | {note or row['error']} |"
    ratio = note or f"{row['ratio']:.2f}"
    cells = (name, package, row["outputs"], f"`{row['method']}`", f"{row['first_seconds']:.1f} s")
    return f"| {' | '.join(map(str, cells))} | {ratio} |"


# Why a std is not near that of Monte Carlo, found out by hand.
NOTES: dict[str, str] = {
    "EfficientNet-B0": "with random weights its logits do not depend on the input",
    "Autoencoder of latent diffusion": "0.85 by chance, since its outputs have heavy tails: 0.97 "
    "against 400 other samples",
}
