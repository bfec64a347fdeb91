"""Why a network misses what is asked for, found out by hand."""

_SLOW_CHECK = (
    "the prediction did not end in time on a machine with three times as many busy processes as "
    "cores; nothing is known about its accuracy"
)
_FEW_PAIRS = "the rank is that of 4 pairs of input and output, which says little"

REMARKS: dict[str, str] = {
    "MTCNN O-Net": (
        f"{_SLOW_CHECK}; a trace showed it inside the first call's check for hidden gradients, "
        "which takes backward passes along lines for each of its 16 outputs"
    ),
    "LSTM speaker encoder": _SLOW_CHECK,
    "PESTO, pitch": _SLOW_CHECK,
    "DNSMOS P.808 (ONNX)": _SLOW_CHECK,
    "EfficientNet-Lite0": _SLOW_CHECK,
    "MiniLM sentence encoder": (
        "the rank is what sampling error leaves: 0.93 for the truth's 400 samples times 0.87 for "
        "the default's 200, by the same formula; the scale is right"
    ),
    "RAPTOR quadrotor policy": (
        "probably `fit` takes the first axis of an activation for the batch, where this GRU has "
        "time (not yet traced)"
    ),
    "CREPE tiny, pitch": "the prediction ended in time, the budget did not",
    "YOLO11n": "the prediction ended in time, the budget did not",
    "ViT tiny": _FEW_PAIRS,
    "PatchTST, time series": _FEW_PAIRS,
    "Silero voice detector (TorchScript)": _FEW_PAIRS,
}
