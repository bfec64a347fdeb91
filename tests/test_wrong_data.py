"""Data in forms that users have it: rows by number, arrays, NaN, whole numbers of any type."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import howsure as hs
from howsure.calibrate import CALIBRATORS

METHODS = ["gradients", "noise_sampling", "linear", "adf"]


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs)).eval()


def held_out(model, count=80):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    with torch.no_grad():
        y = model(x)
    return x, y + 0.1 * torch.randn(y.shape, generator=generator)


def test_a_data_set_is_taken_in_batches():
    model = network()
    x, y = held_out(model, 100)
    sure, same = hs.Uncertain(model, 0.01), hs.Uncertain(model, 0.01)
    assert str(sure.fit(TensorDataset(x, y), show_progress=False)) == str(
        same.fit([(x[:64], y[:64]), (x[64:], y[64:])], show_progress=False)
    )
    p = sure.predict(TensorDataset(x, y), show_progress=False)
    assert torch.equal(p.std, sure(x).std)
    rows = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    named = hs.batches(Rows(rows), inputs=lambda b: b["x"], targets="y")
    assert torch.equal(sure.predict(named, show_progress=False).std, p.std)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x[:50], x[50:]]], ids=["array", "list"])
def test_training_inputs_may_be_arrays_in_double_precision(form):
    model = network()
    known = np.random.default_rng(0).normal(size=(100, 6))
    data = [held_out(model)]
    sure, same = hs.Uncertain(model, 0.01), hs.Uncertain(model, 0.01)
    sure.fit(data, train_inputs=form(known), show_progress=False)
    same.fit(data, train_inputs=torch.tensor(known).float(), show_progress=False)
    x = torch.randn(3, 6)
    torch.testing.assert_close(sure(x).std, same(x).std)


def test_labeled_training_rows_may_be_arrays_in_double_precision():
    model = network()
    x, y = held_out(model, 300)
    train = x[:200].double().numpy(), y[:200].double().numpy()
    found = hs.Uncertain(model, 0.01).fit([(x[200:], y[200:])], train=train, show_progress=False)
    assert "200" in str(found)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_labels_are_whole_numbers_of_any_type(dtype):
    model = network(3)
    x = held_out(model)[0]
    with torch.no_grad():
        labels = (model(x) + 0.3 * torch.randn(80, 3)).argmax(1)
    temperatures = []
    for each in (labels, labels.to(dtype)):
        sure = hs.Uncertain(model, 0.01, task="classification")
        sure.fit([(x, each)], show_progress=False)
        temperatures.append(sure(x[:4]).temperature)
    assert torch.equal(*temperatures)


@pytest.mark.parametrize("method", METHODS)
def test_one_logit_is_no_class(method):
    sure = hs.Uncertain(network(1), 0.01, method, task="classification")
    with pytest.raises(ValueError, match="a logit for each class, and the model returns only one"):
        sure(torch.randn(4, 6))


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_in_place_of_logits_are_noticed(method):
    model, x = network(3), torch.randn(4, 6)
    both = nn.Sequential(model, nn.Softmax(1)).eval()
    with pytest.warns(UserWarning, match="look like probabilities"):
        hs.Uncertain(both, 0.01, method, task="classification")(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.Uncertain(model, 0.01, method, task="classification")(x)


@pytest.mark.parametrize(
    ("task", "squash"), [("classification", nn.Softmax(1)), ("binary", nn.Sigmoid())]
)
def test_fit_notices_probabilities_in_place_of_logits(task, squash):
    classes = 3 if task == "classification" else 1
    model, x = network(classes), torch.randn(80, 6)
    with torch.no_grad():
        model[-1].weight.mul_(5)
        model[-1].bias.add_(1)
        logits = model(x) + torch.randn(80, classes)
    labels = logits.argmax(1) if classes > 1 else (logits[:, 0] > 0).long()
    both = nn.Sequential(model, squash).eval()
    with pytest.warns(hs.HowsureWarning, match="give logits") as caught:
        hs.Uncertain(both, 0.01, task=task).fit(x, labels, show_progress=False)
    assert Path(caught[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.Uncertain(model, 0.01, task=task).fit(x, labels, show_progress=False)


def test_tables_of_text_are_refused():
    x = np.array([["red", 1.0]], dtype=object)
    for table in (x, x.astype(str), pd.DataFrame({"color": ["red"], "size": [1.0]})):
        with pytest.raises(TypeError, match="which are not numbers"):
            hs.Uncertain(nn.Linear(2, 1).eval(), 0.01)(table)


def test_a_class_is_no_model():
    with pytest.raises(TypeError, match=r"give an instance, `Linear\(...\)`"):
        hs.Uncertain(nn.Linear, 0.01)


@pytest.mark.parametrize("kind", ["scale", "affine", "isotonic", "conformal"])
def test_a_calibrator_is_one_short_line(kind):
    assert kind in CALIBRATORS
    model = network()
    sure = hs.Uncertain(model, 0.01)
    found = repr(sure.calibrate([held_out(model)], kind))
    assert found.startswith(f"{type(sure.calibrators[0]).__name__}(")
    assert len(found) < 200 and "\n" not in found and "tensor(" not in found


def test_labels_of_a_classifier_without_its_task_are_told_the_task():
    model, labels = network(3), torch.arange(60) % 3
    with pytest.raises(ValueError, match=r'wrap the model with `task="classification"`'):
        hs.Uncertain(model, 0.01).fit(torch.randn(60, 6), labels, show_progress=False)
