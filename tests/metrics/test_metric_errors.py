"""What metrics refuse: one clear sentence for each mistake, whichever metric it is given to."""

import pytest
import torch

import howsure.metrics as M

ONES = torch.ones(4, 3)
NAN = float("nan")
PROBABILITIES = torch.full((4, 2), 0.5)
LABELS = torch.tensor([0, 1, 0, 1])


def _with(value, where=(0, 0), like=ONES):
    changed = like.clone()
    changed[where] = value
    return changed


MISTAKES = {
    # What is wrong: the call, and what the message must say.
    "shape": (
        M.nll,
        (ONES, ONES, ONES[:, 0]),
        "`mean` has shape (4, 3) and `target` has shape (4,)",
    ),
    "column": (M.rmse, (ONES[:, :1], ONES[:, 0]), "`squeeze`"),
    "class shape": (M.ece, (PROBABILITIES, LABELS[:3]), "(batch, classes, ...)"),
    "class vector": (M.accuracy, (LABELS.float(), LABELS), "(batch, classes, ...)"),
    "not a tensor": (M.mae, ([1.0, 2.0], ONES), "`mean` is a list; pass a torch tensor"),
    "array": (M.auroc, (ONES.numpy(), ONES), "`torch.as_tensor(score)`"),
    "nan": (M.crps, (ONES, ONES, _with(NAN)), "`target` is NaN or infinite in 1 of 12 entries"),
    "infinite": (
        M.ause,
        (ONES, _with(float("inf"))),
        "`uncertainty` is NaN or infinite in 1 of 12",
    ),
    "nan class": (M.brier, (_with(NAN, like=PROBABILITIES), LABELS), "`probabilities` is NaN"),
    "negative variance": (M.nll, (ONES, -ONES, ONES), "`var` is negative in 12 of 12 entries"),
    "negative sharpness": (M.sharpness, (_with(-1.0),), "`var` is negative in 1 of 12 entries"),
    "negative one-hot": (M.one_hot_nll, (ONES, _with(-1.0), LABELS), "`var` is negative in 1 of"),
    "negative error": (M.aurc, (-ONES, ONES), "`error` is negative"),
    "empty": (M.rmse, (ONES[:0], ONES[:0]), "`mean` has no entries"),
    "empty classes": (M.accuracy, (PROBABILITIES[:0], LABELS[:0]), "`scores` has no entries"),
    "zero variance": (M.nll, (ONES, 0 * ONES, ONES), "`var` is 0 in 12 of 12 entries"),
    "zero in curve": (M.calibration_curve, (ONES, _with(0.0), ONES), "`var.clamp(min=...)`"),
    "zero one-hot": (M.one_hot_nll, (ONES, 0 * ONES, LABELS), "`floor=...`"),
    "zero bin": (M.ence, (ONES, 0 * ONES, ONES), "`var` is 0 in a whole bin"),
    "label": (M.accuracy, (PROBABILITIES, LABELS + 1), "`target` is not a class index from 0 to 1"),
    "ignored label": (M.ece, (PROBABILITIES, LABELS - 1), "in 2 of 4 entries; leave such entries"),
    "fraction": (M.accuracy, (PROBABILITIES, LABELS + 0.5), "is not a class index"),
    "logits": (M.categorical_nll, (3 * ONES, LABELS), "`logits.softmax(1)`"),
    "negative": (M.ace, (torch.tensor([[1.5, -0.5]]), LABELS[:1]), "negative or does not sum to 1"),
    "one class": (M.auroc, (ONES, ONES > 0), "`positive` is True everywhere"),
    "no class": (M.auroc, (ONES, ONES < 0), "`positive` is False everywhere"),
    "not binary": (M.auroc, (ONES, 2 * ONES), "`positive` holds values other than 0 and 1"),
    "constant": (M.rank_correlation, (ONES, _with(2.0)), "`first` or `second` is constant"),
    "no components": (M.epe, (ONES[0], ONES[0]), "has shape (3,) and no dimension 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    metric, data, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError)) as found:
        metric(*data)
    text = str(found.value)
    assert message in text
    assert text.endswith((".", "?")) and "\n" not in text


OPTIONS = {
    "mask dtype": (M.nll, {"mask": ONES}, "`mask` is torch.float32; pass a boolean"),
    "mask shape": (M.nll, {"mask": ONES[0] > 0}, "`mask` has shape (3,) for predictions of shape"),
    "empty mask": (M.nll, {"mask": ONES < 0}, "`mean` has no entries to evaluate"),
    "weight sign": (M.nll, {"weight": -ONES}, "`weight` holds negative or NaN values"),
    "weight nan": (M.nll, {"weight": ONES * NAN}, "`weight` holds negative or NaN values"),
    "weight infinite": (M.nll, {"weight": _with(float("inf"))}, "`weight` is NaN or infinite"),
    "weights all 0": (M.nll, {"weight": 0 * ONES}, "`mean` has no entries to evaluate"),
    "floor": (M.nll, {"floor": -1.0}, "`floor` is -1.0"),
    "level": (M.coverage, {"level": 95}, "`level` is 95; give a probability"),
    "score level": (M.interval_score, {"level": 0.0}, "`level` is 0.0"),
    "levels": (M.calibration_curve, {"levels": (0.5, 0.2)}, "`levels` must be"),
    "one level": (M.miscalibration_area, {"levels": (0.5,)}, "`levels` must be"),
    "percent": (M.calibration_curve, {"levels": (5, 50, 95)}, "`levels` must be"),
    "bins": (M.ence, {"bins": 0}, "`bins` is 0; give at least 1"),
    "many bins": (M.ence, {"bins": 13}, "`bins` is 13 for 12 predictions"),
}


@pytest.mark.parametrize("mistake", OPTIONS)
def test_a_mistaken_option_is_named(mistake):
    metric, options, message = OPTIONS[mistake]
    with pytest.raises(ValueError) as found:
        metric(ONES, ONES, ONES, **options)
    assert message in str(found.value)


@pytest.mark.parametrize("metric", [M.brier, lambda p, y, **o: M.one_hot_nll(p, p, y, **o)])
def test_an_unknown_reduction_is_named(metric):
    with pytest.raises(ValueError, match="`reduction` is 'total'; choose 'mean', 'sum' or 'none'"):
        metric(PROBABILITIES, LABELS, reduction="total")


def test_a_huge_but_finite_sum_is_no_infinity():
    big = torch.full((4,), 1e308, dtype=torch.float64)
    assert M.mae(big, big).item() == 0
