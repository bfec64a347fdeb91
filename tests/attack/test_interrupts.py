"""Whatever stops a prediction leaves nothing behind, and threads do not disturb each other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from table import NAMES, TABLE, WIDTH, model_for, uncertain
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import howsure as hs


class Stopper:
    """A hook that raises at the n-th call of a model; at none if n is 0."""

    def __init__(self, model, error):
        self.calls, self.at, self.error = 0, 0, error
        first = model[0] if isinstance(model, nn.ModuleList) else model
        first.register_forward_pre_hook(self)

    def __call__(self, module, args):
        self.calls += 1
        if self.calls == self.at:
            raise self.error

    def start(self, at):
        self.calls, self.at = 0, at


def surroundings(model):
    """All flags that a prediction could leave changed."""
    return (
        [module.training for module in model.modules()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        [(p.requires_grad, p.grad is None, p._version) for p in model.parameters()],
        [
            value.tolist()
            for value in model.state_dict().values()
            if isinstance(value, torch.Tensor)
        ],
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()),
        (len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())),
        torch.get_rng_state().tolist(),
        torch._C._functorch.peek_interpreter_stack() is None,
    )


def same(one, two):
    return all(
        torch.equal(getattr(one, name), getattr(two, name))
        for name in ("mean", "data_var", "model_var")
    )


def assert_right(found, expected):
    """The same result; or that of another method, with a note."""
    is_other = found.notes != expected.notes
    # The std of 200 samples is known to 5 %, that of 8 points to 10 % or so.
    close = {"rtol": 0.5, "atol": 0.0} if is_other else {"rtol": 1e-3, "atol": 1e-6}
    torch.testing.assert_close(found.std, expected.std, **close)


class Odd(Exception):
    """An error that nobody expects."""


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        RuntimeError("no memory"),
        pytest.param(Odd(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_stopped_at_any_call(method, options, error):
    model, x = model_for(method), torch.rand(3, WIDTH)
    stopper = Stopper(model, error)
    before = surroundings(model)
    expected = uncertain(method, options, model)(x)
    total = stopper.calls
    assert total > 0
    # Every call where any error may come; else the first ones, where modes begin, and some others.
    few = 6 if not isinstance(error, Odd) else total
    for at in (*range(1, min(total, few) + 1), *range(few + 1, total + 1, max(1, total // 3))):
        sure = uncertain(method, options, model)
        stopper.start(at)
        try:
            found = sure(x)
        except type(error) as raised:
            assert raised is error
        else:  # The attempt was one that may fail.
            assert isinstance(error, (Odd, RuntimeError))
            assert_right(found, expected)
        assert surroundings(model) == before
        stopper.start(0)
        assert_right(sure(x), expected)


@pytest.fixture
def threads_that_switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_switch_often")
@pytest.mark.parametrize(("method", "options"), TABLE, ids=NAMES)
def test_threads_with_one_wrapper_and_wrappers_with_one_model(method, options):
    model = model_for(method)
    batches = [torch.rand(1 + index % 3, WIDTH) for index in range(8)]
    serial = [uncertain(method, options, model)(x) for x in batches]
    shared, other = (uncertain(method, options, model) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda pair: pair[0](pair[1]), zip([shared, other] * 4, batches, strict=True))
        )
    assert all(map(same, serial, together))


class Counting(nn.Module):
    """Writes to its own state, which its output depends on."""

    def __init__(self, draws=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.draws = nn.Linear(WIDTH, 2), draws
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = torch.tanh(self.layer(x)) * self.calls
        return y + torch.randn_like(y) if self.draws else y


@pytest.mark.usefixtures("threads_that_switch_often")
@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "auto"])
@pytest.mark.parametrize("draws", [False, True])
def test_threads_with_a_model_that_counts_or_draws(method, draws):
    model = Counting(draws).eval()
    batches = [torch.rand(1 + index % 3, WIDTH) for index in range(6)]
    serial = [hs.Uncertain(model, 0.01, method)(x) for x in batches]
    shared = hs.Uncertain(model, 0.01, method)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(shared, batches))
    assert all(map(same, serial, together))
    assert torch.equal(state, torch.get_rng_state()) and float(model.calls) == 0
