"""What tests of exported programs share."""

import importlib.util
from pathlib import Path

import pytest
import torch

# Warnings of torch's own about its own export.
QUIET = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
]
# Samples, which eager takes in place of gradients that cannot be relied on, are not in a file.
EXPORTED = [*QUIET, pytest.mark.usefixtures("unsampled")]
EXAMPLE = Path(__file__).parents[1] / "examples" / "run_exported.py"
_missing = [
    name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None
]
FORMATS = ("pt2",) if _missing else ("pt2", "onnx")
needs_onnx = pytest.mark.skipif(bool(_missing), reason=f"not installed: {', '.join(_missing)}")


def assert_same(found, prediction):
    """Equal to 1e-5 of the largest mean and of the largest total variance."""
    total = float(prediction.total_var.abs().max())
    scales = {"mean": float(prediction.mean.abs().max()), "data_var": total, "model_var": total}
    for name, scale in scales.items():
        expected = getattr(prediction, name)
        assert found[name].shape == expected.shape
        assert float((found[name] - expected).abs().max()) <= 1e-5 * scale


def in_onnxruntime(path):
    """The file as a function from a tensor to named tensors."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]

    def run(x):
        found = session.run(None, {"x": x.numpy()})
        return {name: torch.from_numpy(each) for name, each in zip(names, found, strict=True)}

    return run
