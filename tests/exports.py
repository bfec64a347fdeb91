"""What tests of exported programs share."""

import importlib.util
from pathlib import Path

import pytest

# Warnings of torch's own about its own export.
QUIET = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
]
EXAMPLE = Path(__file__).parents[1] / "examples" / "run_exported.py"
_missing = [
    name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None
]
needs_onnx = pytest.mark.skipif(bool(_missing), reason=f"not installed: {', '.join(_missing)}")
