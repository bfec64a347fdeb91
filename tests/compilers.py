"""What tests of compiled predictions share: cases, comparisons, and which need a compiler."""

from dataclasses import replace

import pytest

from howsure.prediction import Details, Prediction
from howsure.trees import TensorTree


def has_cpp_compiler():
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:
        return False


needs_compiler = pytest.mark.skipif(not has_cpp_compiler(), reason="there is no C++ compiler")

# Warnings of torch's own about its own compiler.
without_compiler_warnings = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TF32.*"),
]

CASES = {
    "adf": ("adf", {}),
    "constant": ("constant", {"residual_var": 0.1}),
    "linear": ("linear", {}),
    "mc_dropout": ("mc_dropout", {"rate": 0.2, "samples": 5}),
    "sampled_adf": ("sampled_adf", {"rate": 0.2, "samples": 5}),
    "sampled_adf, masks per input": (
        "sampled_adf",
        {"rate": 0.2, "samples": 3, "shared_masks": False},
    ),
    "gradients": ("gradients", {}),
    "gradients, masks": ("gradients", {"rate": 0.2}),
    "gradients, mean": ("gradients", {"prediction": "mean", "residual_var": 0.1}),
    "gradients, classes": ("gradients", {"rate": 0.2, "task": "classification"}),
    "classification": ("adf", {"task": "classification"}),
}


def _evaluated(prediction):
    """With standard error and details as values, those of the logits as well."""
    if not isinstance(prediction, Prediction):
        return prediction
    logits = _evaluated(prediction.logits)
    details = Details(prediction.covariance, prediction.linear_share, prediction.sources)
    return replace(prediction, error=prediction.std_error, details=details, logits=logits)


def assert_same(found, expected):
    """Equal to 1e-5; a variance of samples that hardly differ is no better than their means."""
    one, two = TensorTree(_evaluated(found)).tensors, TensorTree(_evaluated(expected)).tensors
    assert len(one) == len(two)
    rounding = 1e-7 * max(float(tensor.abs().max()) for tensor in two)
    for a, b in zip(one, two, strict=True):
        assert a.shape == b.shape
        largest = float(b.abs().max())
        allowed = 1e-5 * largest + min(2 * rounding * largest**0.5, 1e-9)
        assert float((a - b).abs().max()) <= allowed + 1e-12
