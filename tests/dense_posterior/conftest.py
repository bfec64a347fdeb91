"""A network that smooths images, and what was fitted on it; tests change neither."""

import pytest
from dense_networks import data, images, trained

import howsure as hs


@pytest.fixture(scope="session")
def net():
    return trained()


@pytest.fixture(scope="session")
def sure(net):
    wrapped = hs.Uncertain(net, 0.001, samples=20)
    held_out, known = [data(20, 1), data(10, 2)], images(60, 0)
    wrapped.fit(held_out, train_inputs=known, show_progress=False)
    return wrapped
