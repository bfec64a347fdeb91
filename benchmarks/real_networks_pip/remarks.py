"""Why a network misses what is asked for, found out by hand."""

_FEW_PAIRS = "the rank is that of 4 pairs of input and output, which says little"
_LATE = "prediction, check and budget ended in time, the rest did not, on a busy machine"

REMARKS: dict[str, str] = {
    "LSTM speaker encoder": (
        "prediction, check, budget and fit ended in time, the export of 160 steps of three layers "
        "did not"
    ),
    "PESTO, pitch": (
        "its softmax is saturated for sounds this clean: one class has probability 1, and the "
        "largest true std of its 768 outputs is 7e-12. The ratio and the rank are those of the 3 "
        "outputs that move by more than rounding of their own size, and mean nothing"
    ),
    "FCPE conformer, pitch": _LATE,
    "MiniLM sentence encoder": (
        "the rank is what sampling error leaves: 0.93 for the truth's 400 samples times 0.87 for "
        "the default's 200, by the same formula; the scale is right"
    ),
    "DNSMOS P.808 (ONNX)": (
        "the check for hidden gradients raises a false alarm: in float64 its gradients agree with "
        "differences over short steps, and less over a hundredth of the noise, where its kinks "
        "count. So it is sampled, which is right but costs more, and tells no budget"
    ),
    "CREPE tiny, pitch": "the prediction ended in time, the budget did not",
    "YOLO11n": "the prediction ended in time, the budget did not",
    "EfficientNet-Lite0": _FEW_PAIRS,
    "ViT tiny": _FEW_PAIRS,
    "PatchTST, time series": _FEW_PAIRS,
    "Silero voice detector (TorchScript)": _FEW_PAIRS,
}
