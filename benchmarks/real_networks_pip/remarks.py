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
    "ViT tiny": _FEW_PAIRS,
    "PatchTST, time series": _FEW_PAIRS,
    "Silero voice detector (TorchScript)": _FEW_PAIRS,
}
