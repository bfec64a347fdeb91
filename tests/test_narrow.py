"""Compiled code takes Gaussians for narrow, and notices when they are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from compilers import needs_compiler
from howsure.deploy import compile as program
from howsure.deploy.tracing import traced
from howsure.methods import METHODS
from howsure.moments.numerics import expectation, widths_noted
from howsure.trees import TensorTree

# Warnings of torch's own about its own compiler.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Tokens(nn.Module):
    """Two layers over (batch, tokens, width), whose noise grows with the input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(F.gelu(self.first(x * x))).mean(1)


class Counted:
    """A sigmoid that knows how many nodes it was last asked for."""

    def __call__(self, values):
        self.nodes = len(values)
        return torch.sigmoid(values)

    def moments(self, mean, var):
        found = expectation(self, mean, var, analytic=True)
        return [found.mean, found.var]


@pytest.mark.parametrize("std, nodes", [(0.1, 8), (0.3, 60)])
def test_few_nodes_only_where_all_are_narrow(std, nodes):
    function = Counted()
    function.moments(torch.zeros(3), torch.tensor([1e-4, 1e-4, std**2]))
    assert function.nodes == nodes

    def mean_of(mean):
        return function.moments(mean, torch.full_like(mean, std**2))[0]

    torch.vmap(lambda mean: torch.func.jvp(mean_of, (mean,), (torch.ones(3),)))(torch.zeros(2, 3))
    assert function.nodes == nodes, "inside samples and derivatives"


def test_a_trace_takes_few_nodes_only_if_it_may_assume_it():
    function, examples = Counted(), [torch.zeros(3), torch.ones(3)]
    traced(function.moments, examples)
    assert function.nodes == 60
    with widths_noted() as widths:
        traced(function.moments, examples)
    assert function.nodes == 8 and len(widths) == 1


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("adf", {}),
        ("sampled_adf", {"rate": 0.2, "samples": 4}),
        ("sampled_adf", {"rate": 0.2, "samples": 4, "chunk": 1}),
    ],
)
def test_widths_are_told_from_inside_samples_and_derivatives(method, options):
    sure, x = hs.Uncertain(Tokens().eval(), 1e-4, method, **options), torch.rand(2, 3, 4)
    expected = sure(x)

    def flat(x):
        with widths_noted() as noted:
            found = METHODS[method](sure.setup, x)
        return [found.mean, found.total_var, *noted]

    mean, var, *largest = traced(flat, [x])(x)
    torch.testing.assert_close(mean, expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(var, expected.total_var, rtol=1e-4, atol=0)
    assert largest and all(0 < float(width) < 0.2 for width in largest)


@needs_compiler
def test_wrong_inputs_change_nothing_and_wider_gaussians_are_compiled_anew(made):
    sure, plain = (hs.Uncertain(Tokens().eval(), 1e-2, "adf") for _ in range(2))
    sure.compile()
    narrow, wide = 0.5 * torch.rand(2, 3, 4), 20 * torch.rand(2, 3, 4)
    assert_near(sure(narrow), plain(narrow))
    with pytest.raises(ValueError, match="NaN"):
        sure(torch.full_like(narrow, torch.nan))
    assert_near(sure(1.1 * narrow), plain(1.1 * narrow))
    assert len(made) == 1
    with pytest.warns(UserWarning, match="Compiling again.*the noise inside the network is larger"):
        found = sure(wide)
    assert_near(found, plain(wide))
    assert_near(sure(narrow), plain(narrow))  # without a further warning
    assert len(made) == 2


@pytest.fixture
def made(monkeypatch):
    """A list that grows by one with every program."""
    made, compiled_graph = [], program.compiled_graph
    monkeypatch.setattr(
        program, "compiled_graph", lambda *a, **k: made.append(1) or compiled_graph(*a, **k)
    )
    return made


def test_large_means_are_not_wide():
    with widths_noted() as widths:
        hs.propagate(F.gelu, torch.tensor([-5e3, 5e3]), 1e-4)
    assert [float(width) for width in widths] == pytest.approx([1e-2])


def test_without_a_second_program_it_runs_uncompiled(monkeypatch):
    def not_again(setup, method, x, *, may_assume=True):
        if not may_assume:
            raise OSError("no room")

        def run(tensors, held):
            raise program.TooWideError

        return program.Program(program.read_state(setup), run, {})

    monkeypatch.setattr("howsure.deploy.compile.compile_method", not_again)
    sure, plain = (hs.Uncertain(Tokens().eval(), 1e-2, "adf") for _ in range(2))
    x = torch.rand(2, 3, 4)
    again, uncompiled = "Compiling again", "runs uncompiled.*no room"
    with pytest.warns(UserWarning, match=again), pytest.warns(UserWarning, match=uncompiled):
        found = sure.compile()(x)
    for each in (found, sure(x)):
        assert torch.equal(each.total_var, plain(x).total_var)


@needs_compiler
def test_wide_gaussians_are_compiled_once(made):
    sure, plain = (hs.Uncertain(Tokens().eval(), 1e-2, "adf") for _ in range(2))
    wide = 20 * torch.rand(2, 3, 4)
    assert_near(sure.compile()(wide), plain(wide))
    assert len(made) == 1


def assert_near(found, expected):
    for one, two in zip(TensorTree(found).tensors, TensorTree(expected).tensors, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * float(two.abs().max()))
