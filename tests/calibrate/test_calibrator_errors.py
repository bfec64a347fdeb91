"""One protocol for all calibrators: loaders, states, and one clear sentence for bad data."""

import io

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.calibrate import (
    CALIBRATORS,
    AffineVariance,
    Calibrator,
    Conformal,
    ConformalClasses,
    IsotonicQuantiles,
    Temperature,
    VarianceScale,
    calibrator_class,
    class_probabilities,
    from_state,
)

REGRESSION = (VarianceScale, AffineVariance, IsotonicQuantiles, Conformal)
CLASSES = (Temperature, ConformalClasses)


def regression(n=40):
    generator = torch.Generator().manual_seed(0)
    mean, error = torch.randn(2, n, 2, generator=generator)
    var = torch.rand(n, 2, generator=generator) + 0.1
    return hs.Prediction(mean, var, var), mean + error


def classification(n=40):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 3, generator=generator)
    zero = torch.zeros_like(logits)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    return class_probabilities(hs.Prediction(logits, zero, zero)), labels


def data_for(kind):
    return classification() if kind in CLASSES else regression()


def outcome(fitted, prediction):
    after = fitted(prediction)
    if isinstance(fitted, ConformalClasses):
        return [after.sets(0.8)]
    return [after.mean, after.data_var, after.model_var, *after.interval(0.8)]


def test_the_catalog_is_complete():
    assert set(CALIBRATORS.values()) == {*REGRESSION, *CLASSES}
    assert all(issubclass(kind, Calibrator) for kind in CALIBRATORS.values())
    assert calibrator_class("scale") is VarianceScale and calibrator_class(Conformal) is Conformal
    with pytest.raises(ValueError, match=r"must be one of .*'conformal'"):
        calibrator_class("platt")


@pytest.mark.parametrize("kind", CALIBRATORS.values())
def test_a_saved_state_gives_the_same_calibrator(kind):
    prediction, target = data_for(kind)
    fitted = kind.fit(prediction, target)
    file = io.BytesIO()
    torch.save(fitted.state(), file)
    file.seek(0)
    again = from_state(torch.load(file, weights_only=True))
    assert type(again) is kind
    for one, two in zip(outcome(fitted, prediction), outcome(again, prediction), strict=True):
        assert torch.equal(one, two)


def test_groups_and_shapes_survive_saving():
    prediction, target = regression()
    groups = ["a"] * 15 + ["b"] * 25
    fitted = Conformal.fit(prediction, target, groups=groups, joint=True)
    file = io.BytesIO()
    torch.save(fitted.state(), file)
    file.seek(0)
    again = from_state(torch.load(file, weights_only=True))
    assert again.labels == ("a", "b") and again.shape == (2,) and again.joint
    one, two = (each.interval(prediction, 0.8, groups=groups)[0] for each in (fitted, again))
    assert torch.equal(one, two)


def test_wrong_states():
    state = VarianceScale(torch.tensor(2.0)).state()
    with pytest.raises(ValueError, match="state of 'scale', not of 'affine'"):
        AffineVariance.from_state(state)
    with pytest.raises(ValueError, match=r"must be one of .* not 'new'"):
        from_state({"calibrator": "new"})
    with pytest.raises(ValueError, match="do not fit"):
        from_state({**state, "bias": 1})
    with pytest.raises(ValueError, match="None"):
        from_state([])


@pytest.mark.parametrize("kind", CALIBRATORS.values())
def test_fit_loader_is_fit_on_all_batches(kind):
    prediction, target = data_for(kind)
    parts = prediction.logits if kind in CLASSES else prediction

    def sure(index):
        chosen = hs.Prediction(parts.mean[index], parts.data_var[index], parts.model_var[index])
        return class_probabilities(chosen) if kind in CLASSES else chosen

    loader = DataLoader(TensorDataset(torch.arange(40), target), 16)
    whole, batched = kind.fit(prediction, target), kind.fit_loader(sure, loader)
    for one, two in zip(outcome(whole, prediction), outcome(batched, prediction), strict=True):
        torch.testing.assert_close(one, two)
    with pytest.raises(ValueError, match="loader is empty"):
        kind.fit_loader(sure, [])
    with pytest.raises(TypeError, match=r"must be a pair \(inputs, targets\)"):
        kind.fit_loader(sure, [torch.arange(3)])


def test_fit_loader_with_groups_and_several_inputs():
    prediction, target = regression()

    def sure(index, scale):
        parts = (prediction.mean, prediction.data_var, prediction.model_var)
        return hs.Prediction(*(part[index] for part in parts))

    batches = [((i, i), target[i]) for i in torch.arange(40).split(16)]
    fitted = Conformal.fit_loader(sure, batches, groups=lambda inputs: inputs[0] % 2)
    assert fitted.labels == (0, 1) and fitted.counts == (20, 20)
    listed = Conformal.fit_loader(sure, batches, groups=[i % 2 for i in range(40)], joint=True)
    assert listed.labels == (0, 1) and listed.joint
    by_name = [({"index": i, "scale": i}, target[i]) for i in torch.arange(40).split(16)]
    scale = VarianceScale.fit(prediction, target).scale
    torch.testing.assert_close(VarianceScale.fit_loader(sure, by_name).scale, scale)


@pytest.mark.parametrize("kind", REGRESSION)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda p, y: (p, y[:, :1]),
            ValueError,
            r"shape \(40, 1\); predictions of",
        ),
        (lambda p, y: (p, y * torch.nan), ValueError, "target contains NaN"),
        (lambda p, y: (hs.Prediction(p.mean / 0, p.data_var, p.model_var), y), ValueError, "mean"),
        (
            lambda p, y: (hs.Prediction(p.mean, -p.data_var, 0 * p.model_var), y),
            ValueError,
            "must not be negative",
        ),
        (
            lambda p, y: (hs.Prediction(p.mean, p.data_var[:, :1], p.model_var), y),
            ValueError,
            "they must be equal",
        ),
        (
            lambda p, y: (hs.Prediction(p.mean[:1], p.data_var[:1], p.model_var[:1]), y[:1]),
            ValueError,
            "There are 1 held-out points",
        ),
        (
            lambda p, y: (hs.Prediction(p.mean[:0], p.data_var[:0], p.model_var[:0]), y[:0]),
            ValueError,
            "There are 0 held-out points",
        ),
        (lambda p, y: (p.mean, y), TypeError, "takes a `Prediction`, not a Tensor"),
        (
            lambda p, y: (hs.Prediction((p.mean, p.mean), p.data_var, p.model_var), y),
            ValueError,
            "has 2 floating-point tensors",
        ),
        (
            lambda p, y: (hs.Prediction(*3 * [torch.tensor(1.0)]), torch.tensor(1.0)),
            ValueError,
            "no batch axis",
        ),
    ],
)
def test_bad_data(kind, change, error, message):
    with pytest.raises(error, match=message):
        kind.fit(*change(*regression()))


@pytest.mark.parametrize("kind", [VarianceScale, IsotonicQuantiles])
def test_zero_variances_that_cannot_be_corrected(kind):
    prediction, target = regression()
    zero = torch.zeros_like(target)
    with pytest.raises(ValueError, match=r"80 of 80 held-out variances are 0.*`AffineVariance`"):
        kind.fit(hs.Prediction(prediction.mean, zero, zero), target)


def test_degenerate_errors():
    prediction, target = regression()
    for kind in (VarianceScale, AffineVariance):
        with pytest.raises(ValueError, match="are 0; are the targets predictions"):
            kind.fit(prediction, prediction.mean)
    target[0], prediction.data_var[0], prediction.model_var[0] = prediction.mean[0], 0, 0
    with pytest.raises(ValueError, match="2 held-out points have error 0 and variance 0"):
        AffineVariance.fit(prediction, target)
    with pytest.raises(ValueError, match="fitted for 3 outputs"):
        VarianceScale(torch.ones(3))(prediction)
    with pytest.raises(ValueError, match=r"needs predictions of shape \(batch, outputs"):
        flat = hs.Prediction(torch.zeros(5), torch.ones(5), torch.ones(5))
        VarianceScale.fit(flat, torch.ones(5), per_output=True)


@pytest.mark.parametrize("kind", REGRESSION)
def test_calibrated_intervals_come_last(kind):
    prediction, target = regression()
    last = Conformal.fit(prediction, target)(prediction)
    with pytest.raises(ValueError, match="already those of `Conformal`, which must come last"):
        kind.fit(prediction, target)(last)
    with pytest.raises(ValueError, match="must come last"):
        kind.fit_loader(lambda index: last, [(torch.arange(40), target)])
    with pytest.raises(ValueError, match="must come last"):
        kind.fit(last, target)


@pytest.mark.parametrize("kind", CALIBRATORS.values())
def test_predictions_are_not_changed(kind):
    prediction, target = data_for(kind)
    fitted = kind.fit(prediction, target)
    before = [t.clone() for t in (prediction.mean, prediction.data_var, prediction.model_var)]
    fitted(prediction)
    after = (prediction.mean, prediction.data_var, prediction.model_var)
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    with pytest.raises(AttributeError, match="cannot assign"):
        fitted.kind = "other"
