"""Predictions as sequences, dicts, arrays and tables; batches in any form."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import howsure as hs
from nets import perceptron


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(80, 8), nn.Linear(8, 2)

    def forward(self, x, scale):
        return {"pose": self.last(torch.tanh(self.first(x))) * scale}


def fitted():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(80, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    x = torch.randn(60, 80)
    with torch.no_grad():
        y = model(x)
        sure = hs.Uncertain(model, 0.01)
        sure.fit([(x, y + 0.1 * torch.randn(60, 2))])
    return sure, x


CASES = {
    "gradients": lambda: (hs.Uncertain(Two().eval(), (0.01, None)), 6),
    "sampling": lambda: (hs.Uncertain(Two().eval(), (0.01, None), "noise_sampling", samples=9), 6),
}


def tensors(p):
    found = [p.mean, p.data_var, p.model_var, p.std, p.std_error, p.covariance, p.linear_share]
    found += [p.novelty, p.joint_novelty, p.expected_entropy]
    return [each for each in found if isinstance(each, torch.Tensor)]


@pytest.mark.parametrize("index", [3, -1, slice(1, 4), [4, 0], np.array([2, 2])])
def test_rows_are_those_of_every_field(index):
    sure, x = fitted()
    p, wanted = sure(x[:6]), torch.arange(6)[index].reshape(-1)
    part = p[index]
    assert len(p) == 6 and len(part) == len(wanted)
    assert len(tensors(p)) >= 8
    for whole, own in zip(tensors(p), tensors(part), strict=True):
        assert torch.equal(own, whole[wanted])
    torch.testing.assert_close(part.budget().total, part.total_var)
    assert torch.equal(part.budget().heatmap(), p.budget().heatmap()[wanted])
    assert part.method == p.method and part.notes == p.notes


def test_a_mask_chooses_and_a_loop_ends():
    sure, x = fitted()
    p = sure(x[:6])
    far = p.joint_novelty > p.joint_novelty.median()
    assert len(p[far]) == int(far.sum()) and [len(each) for each in p] == [1] * 6
    with pytest.raises(IndexError):
        p[6]
    with pytest.raises(TypeError, match="its inputs alone"):
        p[0, 1]


def test_class_probabilities_have_rows_too():
    model = nn.Sequential(nn.Linear(80, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    p = hs.Uncertain(model, 0.01, task="classification")(torch.randn(5, 80))
    assert torch.equal(p[2:4].entropy, p.entropy[2:4])
    assert torch.equal(p[2:4].logits.mean, p.logits.mean[2:4])


@pytest.mark.parametrize("case", CASES)
def test_structured_outputs_keep_their_structure(case):
    sure, rows = CASES[case]()
    p = sure(torch.randn(rows, 80), torch.ones(rows, 1))
    assert len(p) == rows and torch.equal(p[2].mean["pose"], p.mean["pose"][2:3])
    arrays = p.numpy(level=0.9)
    np.testing.assert_array_equal(arrays["std"]["pose"], p.std["pose"].numpy())
    np.testing.assert_array_equal(arrays["high"]["pose"], p.interval(0.9)[1]["pose"].numpy())


def test_a_table_has_a_row_for_each_input():
    sure, x = fitted()
    table = sure(x[:6]).to_pandas(level=0.95)
    assert isinstance(table, pd.DataFrame) and len(table) == 6
    wanted = {"mean_0", "std_1", "data_var_0", "model_var_1", "low_0", "novelty_1", "joint_novelty"}
    assert wanted <= set(table)
    np.testing.assert_array_equal(table["mean_1"], sure(x[:6]).mean[:, 1].numpy())


def test_a_prediction_goes_to_another_type():
    sure, x = fitted()
    p = sure(x[:6]).to(torch.float64)
    assert p.mean.dtype == p.budget().total.dtype == p.covariance.dtype == torch.float64
    np.testing.assert_allclose(p.std, sure(x[:6]).std, rtol=1e-6)


class Transposed(nn.Module):
    """Rows on the second axis, as many networks of sequences have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(80, 2)

    def forward(self, x):  # (time, batch, features) -> (time, batch, 2)
        return torch.tanh(self.layer(x))


def test_rows_on_another_axis():
    sure = hs.Uncertain(Transposed().eval(), 0.01, "gradients", batch_dim=1)
    x = torch.randn(3, 5, 80)
    p = sure(x)
    assert len(p) == 5 and torch.equal(p[4].mean, p.mean[:, 4:5])
    both = sure.predict([x[:, :2], x[:, 2:]], show_progress=False)
    torch.testing.assert_close(both.total_var, p.total_var)
    one = hs.Uncertain(Transposed().eval(), 0.01, "gradients", batch_dim=None)(x)
    with pytest.raises(TypeError, match="single input"):
        len(one)


def test_outputs_with_rows_on_different_axes_are_not_joined():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(80, 2, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    sure = hs.Uncertain(Recurrent().eval(), 0.01, "gradients")
    with pytest.raises(TypeError, match="output="):
        sure.predict([torch.randn(4, 3, 80), torch.randn(4, 3, 80)], show_progress=False)
    chosen = hs.Uncertain(Recurrent().eval(), 0.01, "gradients", output=0)
    assert len(chosen.predict([torch.randn(4, 3, 80)] * 2, show_progress=False)) == 8


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_arrays_go_in(dtype):
    model = perceptron()
    sure = hs.Uncertain(model, 0.01, "noise_sampling", samples=8)
    features = next(model.parameters()).shape[1]
    x = np.random.default_rng(0).normal(size=(4, features)) * 3
    if dtype == "int64":
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            sure(x.astype(dtype))
        return
    expected = sure(torch.from_numpy(x).float())
    assert torch.equal(sure(x.astype(dtype)).mean, expected.mean)


# Batches as dicts


def dicts(count=64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 80, generator=generator)
    scale = torch.ones(count, 1)
    with torch.no_grad():
        y = Two()(x, scale)["pose"] + 0.1 * torch.randn(count, 2, generator=generator)
    rows = [{"x": a, "scale": s, "label": b} for a, s, b in zip(x, scale, y, strict=True)]
    return DataLoader(rows, batch_size=32), x, scale, y


@pytest.mark.parametrize(
    "choice",
    [
        {"inputs": ["x", "scale"], "targets": "label"},
        {
            "inputs": lambda batch: (batch["x"], batch["scale"]),
            "targets": lambda batch: batch["label"],
        },
    ],
)
def test_dict_batches_in_every_call(choice):
    loader, x, scale, y = dicts()
    held_out = hs.batches(loader, **choice)
    noise = {"x": 0.01} if isinstance(choice["inputs"], list) else (0.01, None)
    sure = hs.Uncertain(Two().eval(), noise, output="pose")
    pairs = [((a, s), b) for a, s, b in zip(x.split(32), scale.split(32), y.split(32), strict=True)]
    plain = hs.Uncertain(Two().eval(), (0.01, None), output="pose")
    fits = sure.fit(held_out), plain.fit(pairs)
    assert fits[0].nll == pytest.approx(fits[1].nll, rel=1e-6)
    sure.calibrate(held_out, "scale")
    plain.calibrate(pairs, "scale")
    found = sure.predict(held_out, show_progress=False)
    torch.testing.assert_close(found.std, plain(x, scale).std)
    named = hs.batches(loader, choice["inputs"])
    assert torch.equal(sure.predict(named, show_progress=False).std, found.std)
    audit = hs.audit(
        Two().eval(), held_out, noise, output="pose", samples=40, methods=["noise_sampling"],
        show_progress=False,
    )  # fmt: skip
    assert audit.rows[0].method == "noise_sampling"


def test_wrong_names_are_answered():
    loader, x, _, y = dicts()
    sure = hs.Uncertain(Two().eval(), {"x": 0.01}, output="pose")
    with pytest.raises(TypeError, match=r"hs\.batches\(loader, inputs=\.\.\., targets=\.\.\.\)"):
        sure.fit(loader)
    with pytest.raises(ValueError, match="has no 'angle'; it has"):
        sure.fit(hs.batches(loader, "x", "angle"))
    with pytest.raises(TypeError, match="give a function of it"):
        sure.fit(hs.batches([(x, y)], "x", "label"))


def test_calibration_does_not_join_rows_on_another_axis():
    sure = hs.Uncertain(Transposed().eval(), 0.01, "gradients", batch_dim=1)
    x, y = torch.randn(3, 6, 80), torch.randn(3, 6, 2)
    with pytest.raises(ValueError, match="batch is on axis 1"):
        sure.calibrate([(x[:, :3], y[:, :3]), (x[:, 3:], y[:, 3:])], "scale")
    sure.calibrate([(x, y)], "scale")
