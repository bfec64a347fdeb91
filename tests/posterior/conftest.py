"""The network of the wave, and its posterior; tests read both and change neither."""

import pytest
from waves import data, trained

import howsure as hs


@pytest.fixture(scope="session")
def net():
    return trained()


@pytest.fixture(scope="session")
def sure(net):
    wrapped = hs.Uncertain(net, noise=0.001)
    wrapped.fit([data(200, 1)], train_inputs=data(400, 0)[0])
    return wrapped
