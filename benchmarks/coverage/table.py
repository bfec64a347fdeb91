"""coverage.json as a page to read."""

from __future__ import annotations

from typing import Any

from bench import markdown

LIBRARIES = ("timm", "torchvision", "transformers", "handwritten")
Row = dict[str, Any]


def page(rows: list[Row], made: dict[str, Any]) -> str:
    """The whole page; `made` has the record of each library's rows."""
    parts = [_head(made), _states(rows), _summary(rows), _misses(rows)]
    parts += [_table(library, rows) for library in LIBRARIES]
    return "\n".join(part for part in parts if part)


def _head(made: dict[str, Any]) -> str:
    how = "\n".join(_made(library, made[library]) for library in LIBRARIES if library in made)
    return f"""# Coverage: which architectures run

One pass with Gaussians through real architectures with random weights (seed 0; parameters that
start as constants, such as layer scales of 1e-6, are made random so that no branch is dead), no
fallback.

Batch-norm statistics are fitted to four random inputs, with a floor of a fifth of the mean
variance. With the initial ones (0, 1) some networks shrink their signal until the variance leaves
float32. Fitted to one small image with a floor of a hundredth, ghostnet, repghost, hardcorenas,
mobilenetv4 hybrid and efficientvit_l1 were off by more than 1e-4 without noise. Four of these were
looked into (ghostnet_050, repghostnet_050, hardcorenas_b, efficientvit_l1): they amplify rounding
errors, and the plain float32 pass differed from the plain float64 pass by more than the Gaussian
pass did from the plain one.

- *ops*: different torch operations applied to noisy tensors.
- *zero noise*: largest deviation from the plain forward pass when the noise is 0, relative to the
  largest output, in float32; 1e-4 is the limit.
- *cost*: one pass with Gaussians, in plain forward passes of the same model (processor time,
  minimum of 3, interleaved, one thread, batch 1 or 2, small images). Models that take a millisecond
  measure the cost of Python more than that of the rules.
- *default*: the method that `hs.Uncertain(model, noise)` took by itself; "failed" if it raised or
  gave no finite std; empty where it was not tried.
- *four outputs*: the method that it took for the first four numbers of the output alone, and its
  std over that of 200 samples (geometric mean over at most eight numbers that share their samples:
  off by 4 % by chance).
- *ok*: runs, is right without noise, and with noise of variance 1e-4 every variance is finite, none
  is negative, and some are not zero.

{how}
"""


def _made(library: str, record: Row) -> str:
    here = record["environment"]
    names = dict.fromkeys(("howsure", "torch", library))
    packages = {name: here["packages"][name] for name in names if name in here["packages"]}
    listed = ", ".join(f"{name} {version}" for name, version in packages.items())
    return f"- {library}: `{record['command']}`, {here['date']}, {listed}, Python {here['python']}."


def _states(rows: list[Row]) -> str:
    """A warning while the rows come from different states of the library."""
    states = {row.get("source") for row in rows if row["status"] != "not run"}
    waiting = sum(row["status"] == "not run" for row in rows)
    lines = []
    if len(states) > 1:
        lines.append(f"**Provisional: measured with {len(states)} states of the library.**")
    if waiting:
        lines.append(f"**Incomplete: {waiting} models were not run yet.**")
    return "\n".join(lines) + "\n" if lines else ""


def _summary(rows: list[Row]) -> str:
    header = ("library", "listed models ok", "further models ok", "median cost", "worst zero noise")
    lines = []
    for library in LIBRARIES:
        own = [row for row in rows if row["library"] == library]
        shares = (_share([row for row in own if row["further"] is kind]) for kind in (False, True))
        costs = sorted(row["cost_ratio"] for row in own if row["cost_ratio"] is not None)
        errors = [r["zero_noise_error"] for r in own if r["zero_noise_error"] is not None]
        tried = [(row["default"], row.get("few")) for row in own if row.get("default")]
        ran = f"{sum('failed' not in each for each in tried)} of {len(tried)}"
        lines.append(
            (
                *(library, *shares, f"{costs[len(costs) // 2]:.1f}" if costs else ""),
                *(f"{max(errors):.1e}" if errors else "", ran if tried else "not tried"),
            )
        )
    return markdown((*header, "run by default"), lines) + "\n"


def _share(rows: list[Row]) -> str:
    return f"{sum(row['status'] == 'ok' for row in rows)} of {len(rows)}" if rows else ""


def _misses(rows: list[Row]) -> str:
    bad = [row for row in rows if row["status"] not in ("ok", "not run")]
    if not bad:
        return ""
    lines = ["## Misses", ""]
    for row in bad:
        named = ", ".join(f"`{entry['operation']}`" for entry in row["missing"])
        reason = row["reason"].replace("\n", " ")
        lines.append(f"- {row['library']} {row['name']}: {row['status']} {named}. {reason}")
    return "\n".join(lines) + "\n"


def _table(library: str, rows: list[Row]) -> str:
    lines = [_cells(row) for row in rows if row["library"] == library]
    header = ("family", "model", "ops", "result", "zero noise", "cost", "default", "four outputs")
    return f"## {library}\n\n{markdown(header, lines)}\n" if lines else ""


def _cells(row: Row) -> tuple[str, ...]:
    error, cost, ratio = row["zero_noise_error"], row["cost_ratio"], row.get("few_ratio")
    return (
        row["family"],
        row["name"] + (" (further)" if row["further"] else ""),
        str(len(row["operations"])),
        row["status"],
        "" if error is None else f"{error:.1e}",
        "" if cost is None else f"{cost:.1f}",
        row.get("default", ""),
        row.get("few", "") + ("" if ratio is None else f", {ratio:.2f}"),
    )
