"""Held-out data that is the training data, or a copy of it, is warned about."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import howsure as hs
from nets import perceptron

RATES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)


@pytest.fixture(scope="module")
def held_out():
    """Three numbers each, and targets that the network nearly hits."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(120, 3, generator=generator)
    target = perceptron()(x).detach() + 0.1 * torch.randn(120, 2, generator=generator)
    return TensorDataset(x, target)


@pytest.mark.filterwarnings("ignore:The best rate")
def test_training_data_is_warned_about(held_out):
    sure = hs.Uncertain(perceptron(), 0.01, "sampled_adf")
    data = DataLoader(held_out, 120)
    options = {"rates": RATES, "samples": 4, "show_progress": False}
    with pytest.warns(UserWarning, match="training data"):
        sure.fit(data, training_data=held_out, **options)
    one, two = Subset(held_out, range(60)), Subset(held_out, range(50, 120))
    with pytest.warns(UserWarning, match="training data"):
        sure.fit(DataLoader(one, 60), training_data=two, **options)
    sure.fit(DataLoader(one, 60), training_data=Subset(held_out, range(60, 120)), **options)


def test_a_copy_of_the_training_data_is_warned_about(held_out):
    x, y = (each.clone() for each in held_out.tensors)
    for training in (x.numpy(), [(x, y)], TensorDataset(x, y), DataLoader(held_out, 8)):
        with pytest.warns(UserWarning, match="shares inputs with the training data"):
            sure = hs.Uncertain(perceptron(), 0.01)
            sure.fit([(x[:60].clone(), y[:60])], training_data=training, show_progress=False)
    others = [(x + 1, y), (x[:5], y[:5])]  # 5 of 60 may be alike by chance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.Uncertain(perceptron(), 0.01).fit(
            [(x[:60], y[:60])], training_data=others, show_progress=False
        )
