"""A GIF: vehicles on a lemniscate, the network's uncertainty along the path."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from howsure.files import write_atomically
from howsure_lab.experiments.figures import COLORS, new_figure
from howsure_lab.experiments.quadrotor.policies import LABELS

_EVERY = 2  # of the kept points, of which there are 25 a second
_TRAIL = 12  # frames
_SECONDS = 8  # longer files are too large for a page


def animate(found: Mapping[str, Any], path: Path, *, title: str) -> Path:
    """Writes the GIF of one case, at real time; the color is the std that the soft blend sees.

    Args:
        found: A case of a run's paths.
        path: Where to write.
        title: Above the picture.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("A GIF needs Pillow: `pip install pillow`.") from None
    frames = []
    for end in range(_EVERY, min(25 * _SECONDS, len(found["reference"])), _EVERY):
        frames.append(Image.fromarray(_frame(found, end, title)).quantize(64))
    first, *others = frames
    options = {"save_all": True, "append_images": others, "duration": 40 * _EVERY, "loop": 0}
    write_atomically(path, lambda file: first.save(file, format="GIF", optimize=True, **options))
    return path


def _frame(found: Mapping[str, Any], end: int, title: str) -> np.ndarray:
    figure, axes = new_figure(1, 1, width=6.4, height=4.2)
    ax = axes[0, 0]
    ax.plot(*np.array(found["reference"]).T, color="0.85", linewidth=7, zorder=0, label="reference")
    plain = np.array(found["mlp"]["path"][max(0, end - _TRAIL * _EVERY) : end])
    ax.plot(*plain.T, color=COLORS[5], linewidth=1.5, label=LABELS["mlp"])
    ax.plot(*plain[-1], marker="X", markersize=9, color=COLORS[5])
    blended = np.array(found["soft_blend"]["path"][:end])
    std = np.array(found["soft_blend"]["std"], dtype=float)
    drawn = ax.scatter(*blended.T, c=std[:end], s=10, vmin=0, vmax=float(np.nanmax(std)))
    ax.plot(*blended[-1], "o", markersize=9, color=COLORS[4], label=LABELS["soft_blend"])
    figure.colorbar(drawn, ax=ax, label="predicted std, mean of the network's outputs")
    ax.set(xlim=(-6, 6), ylim=(-4, 4), xlabel="x, m", ylabel="y, m", title=title)
    ax.set_aspect("equal")
    ax.legend(loc="lower right", fontsize=8, frameon=False)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()  # pyright: ignore


def main() -> int:
    """Draws a case of a finished run."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("out", type=Path, help="the GIF")
    parser.add_argument("--case", default="input_fault lemniscate")
    options = parser.parse_args()
    parts = sorted(options.run.glob("parts/*/seed0.json"), key=lambda file: file.stat().st_mtime)
    if not parts:
        print(f"There is no finished seed 0 in `{options.run}`.", file=sys.stderr)
        return 1
    paths = json.loads(parts[-1].read_text(encoding="utf-8"))["paths"]
    if options.case not in paths:
        print(f"`--case` must be one of {sorted(paths)}.", file=sys.stderr)
        return 2
    animate(paths[options.case], options.out, title=options.case.replace("_", " "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
