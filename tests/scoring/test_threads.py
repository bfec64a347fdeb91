"""One `Uncertain` used by 8 threads at once gives what it gives to one."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import howsure as hs
from nets import TwoSensors, small_image_net

METHODS = [
    "sampled_adf",
    "gradients",
    "adf",
    "mc_dropout",
    "noise_sampling",
    "linear",
]


@pytest.fixture(autouse=True)
def threads_that_switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def normalized():
    """Layers whose rules are differentiated in forward mode."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.GLU(), nn.LayerNorm(3), nn.Softmax(1), nn.Linear(3, 2)
    return nn.Sequential(*layers).eval()


CASES = {
    "images": (small_image_net, (1, 8, 8)),
    "forward mode": (normalized, (6,)),
}


def same(one, two):
    return all(
        torch.equal(getattr(one, name), getattr(two, name))
        for name in ("mean", "data_var", "model_var")
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_eight_threads_get_what_one_gets(case, method):
    make, shape = CASES[case]
    model = make()
    # Batches of different sizes, so that nothing fits by chance.
    batches = [torch.rand(1 + index % 4, *shape) for index in range(12)]

    def uncertain():
        # Smooth over its masks, so that the checks of whichever input comes first say the same.
        return hs.Uncertain(model, noise=0.01, method=method, rate=0.02, samples=4)

    serial = [uncertain()(x) for x in batches]
    shared = uncertain()  # nothing is cached in it yet
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(shared, batches))
    assert all(map(same, serial, together))


def test_threads_with_different_models_do_not_meet():
    torch.manual_seed(0)
    sensors = hs.Uncertain(TwoSensors().eval(), (0.01, 0.02), "adf")
    images = hs.Uncertain(small_image_net(), 0.01, "sampled_adf", rate=0.3, samples=4)
    inputs = [(torch.rand(2, 1, 8, 8), torch.rand(2, 6)) for _ in range(8)]

    def both(pair):
        return sensors(*pair).mean["pose"][0], images(pair[0]).total_var

    serial = [both(pair) for pair in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(both, inputs))
    for one, two in zip(serial, together, strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
