"""One file for the robot: mean and variances as an ONNX program, run without howsure.

A small network estimates a force from six readings; its uncertainty is exported with it. Where the
packages for ONNX are missing (`pip install 'howsure[export]'`) it becomes a torch program, `.pt2`.

Run from the repository: `python examples/gallery/export_onnx.py`
"""

from __future__ import annotations

import argparse
import tempfile
import timeit
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import howsure as hs
from howsure.files import write_atomically

NOISE = hs.noise.per_channel(stds=[0.02, 0.02, 0.05, 0.05, 0.1, 0.1])


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        x = 2 * torch.rand(128, 6) - 1
        force = torch.sin(2 * x[:, :2]).sum(1) * x[:, 2] + x[:, 3:].square().sum(1)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x)[:, 0], force).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def runner(path: Path) -> Callable[[Tensor], dict[str, Tensor]]:
    """What runs on the robot: no howsure, no model class."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> dict[str, Tensor]:
        found = map(torch.from_numpy, session.run(None, {name: x.numpy()}))
        return dict(zip(names, found, strict=True))

    return run


def microseconds(call: Callable[[Tensor], object], x: Tensor, repeats: int) -> float:
    """The shortest of several calls."""
    return 1e6 * min(timeit.repeat(lambda: call(x), number=1, repeat=repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description="Export to ONNX.")
    parser.add_argument("--out", type=Path, default=Path("out/gallery_export_onnx.png"))
    parser.add_argument("--quick", action="store_true", help="a shorter training, fewer calls")
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = trained(100 if options.quick else 1500)
    sure = hs.Uncertain(model, NOISE, "sampled_adf", rate=0.01)
    suffix = ".onnx" if find_spec("onnx") and find_spec("onnxruntime") else ".pt2"
    x = 2 * torch.rand(300, 6, generator=torch.Generator().manual_seed(1)) - 1
    with tempfile.TemporaryDirectory() as folder:
        done = hs.export(sure, x[:4], Path(folder) / f"force{suffix}", units="N")
        size = done.path.stat().st_size / 1024
        exported = runner(done.path)
        found, p = exported(x), sure(x)
    std = (found["data_var"] + found["model_var"]).sqrt()
    print(
        f"A {suffix} file of {size:.0f} kB; std off by {(std - p.std).abs().max():.1e} N at most."
    )

    calls = {"the plain network": model, "howsure in Python": sure, f"the {suffix} file": exported}
    times = {
        name: microseconds(call, x[:1], 5 if options.quick else 200) for name, call in calls.items()
    }
    figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(p.std, std, ".", color="#0072B2", markersize=5)
    left.axline((0, 0), slope=1, color="black", linewidth=0.8)
    left.set(xlabel="std by howsure, N", ylabel=f"std by the {suffix} file, N")
    bars = right.barh(list(times), list(times.values()), color="#56B4E9")
    right.bar_label(bars, fmt="{:.0f} µs", padding=4)
    right.set(xscale="log", xlim=(5, 5 * max(times.values())), xlabel="time for one input, µs")
    write_atomically(options.out, lambda file: figure.savefig(file, format="png"))
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
