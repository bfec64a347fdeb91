"""Inputs, settings and noises that cannot be used: one clear sentence each, or it works."""

import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs

NET = nn.Sequential(nn.Linear(100, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
X = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: X.tolist(), "a list without any tensor"),
        (lambda: [row.numpy() for row in X], "a list without any tensor"),
        (lambda: "a path", "a str without any tensor"),
        (lambda: None, "a NoneType without any tensor"),
        (lambda: X.to_sparse(), r"sparse.*to_dense"),
        (lambda: X.to_sparse_csr(), r"sparse.*to_dense"),
        (lambda: X.to("meta"), r'"meta".*has values'),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), r"quantized.*dequantize"),
        (lambda: (X.to_sparse(),), r"sparse.*to_dense"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_inputs_without_readable_elements_are_refused(make, words):
    with pytest.raises(TypeError, match=words):
        hs.Uncertain(NET, 0.01)(make())


def test_a_table_of_pandas_is_an_array():
    pandas = pytest.importorskip("pandas")
    sure = hs.Uncertain(NET, 0.01)
    p, expected = sure(pandas.DataFrame(X.numpy())), sure(X)
    torch.testing.assert_close(p.std, expected.std)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_are_refused_until_they_have_weights():
    net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)).eval()
    with pytest.raises(ValueError, match="lazy layers"):
        hs.Uncertain(net, 0.01)
    net(X)
    assert bool((hs.Uncertain(net, 0.01)(X).std > 0).all())


def test_a_variance_that_the_type_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"more than torch\.float32 can hold"):
        hs.Uncertain(NET, 1e300)(X)
    assert bool(hs.Uncertain(NET.double(), 1e300)(X.double()).std.isfinite().all())
    NET.float()


def test_variances_below_the_type_have_a_note():
    p = hs.Uncertain(NET, 0.01, output=lambda y: 1e-30 * y)(X)
    assert any("smaller than float32 can hold" in note for note in p.notes)
    assert not any("None of" in note for note in p.notes)


def test_a_rectifier_that_noise_seldom_passes_has_a_note():
    net = nn.Sequential(nn.Linear(100, 1), nn.ReLU()).eval()
    with torch.no_grad():
        net[0].weight.fill_(0.1)
        net[0].bias.fill_(-float((X @ net[0].weight.T).max()) - 0.5)
    p = hs.Uncertain(net, 0.01)(X)
    assert not p.std.any() and any("None of 56 noisy samples" in note for note in p.notes)


@pytest.fixture(scope="module")
def state():
    sure = hs.Uncertain(NET, 0.01)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 100, generator=generator)
    y = NET(x).detach() + 0.1 * torch.randn(60, 1, generator=generator)
    sure.fit([(x, y)], show_progress=False)
    return sure.get_extra_state()


def spoil(value, number):
    """The value with another number in place of every one that it has."""
    if isinstance(value, dict):
        return {key: spoil(item, number) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.full_like(value, number)
    return number if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(
            (name, number)
            for name in ("residual_var", "rate", "noise")
            for number in (np.nan, -1.0)
        ),
        *(("samples", -3), ("tolerance", np.nan), ("seed", 1.5), ("chunk", 0)),
    ],
)
def test_edited_settings_are_refused(state, name, number):
    sure = hs.Uncertain(NET, 0.01)
    with pytest.raises(ValueError):
        sure.set_extra_state({**state, name: number})
        sure(X)


def test_edited_numbers_of_a_fit_are_refused(state):
    model = state["variance_model"]["variance_model"]
    variances = ("weights", "squared_error", "spread")
    edits = [(name, np.nan) for name in model] + [(name, -1.0) for name in variances]
    refused = 0
    for name, number in edits:
        spoiled = spoil(model[name], number)
        if repr(spoiled) == repr(model[name]):
            continue  # It holds no numbers.
        refused += 1
        with pytest.raises(ValueError, match="settings were damaged"):
            hs.Uncertain(NET, 0.01).set_extra_state(
                {**state, "variance_model": {"variance_model": {**model, name: spoiled}}}
            )
    assert refused >= 12


@pytest.mark.parametrize("missing", ["method", "calibrators", "noise", "seed"])
def test_settings_that_lack_something_are_refused(state, missing):
    with pytest.raises(ValueError, match="Incompatible settings"):
        hs.Uncertain(NET, 0.01).set_extra_state({k: v for k, v in state.items() if k != missing})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_forked_while_another_thread_predicts_can_predict():
    from howsure.isolation import random_state_kept

    torch.set_num_threads(1)
    sure, started, done = hs.Uncertain(NET, 0.01), threading.Event(), threading.Event()
    sure(X)

    def hold():
        with random_state_kept():
            started.set()
            done.wait(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait()
    child = os.fork()
    if child == 0:
        got_it = []
        worker = threading.Thread(target=lambda: got_it.append(enter()), daemon=True)
        worker.start()
        worker.join(5)
        os._exit(0 if got_it else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0, "the child waits for a lock that nobody holds"


def enter():
    """Takes the lock as a prediction of a random model does."""
    from howsure.isolation import random_state_kept

    with random_state_kept():
        return True
