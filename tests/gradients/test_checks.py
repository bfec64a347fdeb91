"""What the method takes for granted is checked; what does not hold is sampled, with a reason."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import howsure as hs


class Doubled(torch.autograd.Function):
    """Its backward pass is wrong."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 5 * gradient


def frozen(h):
    with torch.no_grad():
        return h.clone()


HIDING = {
    "no_grad": frozen,
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "numpy": lambda h: torch.from_numpy(h.detach().numpy().copy()),
    "own backward pass": Doubled.apply,
    "fine steps": lambda h: torch.round(100 * h) / 100,
    "coarse steps": lambda h: torch.round(2 * h),
    "sign": torch.sign,
    "half hidden": lambda h: h + h.flip(1).detach(),
}


class Network(nn.Module):
    """A hidden layer goes through a function that autograd cannot see through."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(70, 30), nn.Linear(30, 2), function

    def forward(self, x):
        return self.last(self.function(torch.tanh(self.first(x))))


def brute_force(net, x, std, samples=4000):
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        draws = [net(x + std * torch.randn(x.shape, generator=generator)) for _ in range(samples)]
    return torch.stack(draws).std(0)


def agrees(p, net, x, std=0.3):
    return float((p.std / brute_force(net, x, std) - 1).abs().max()) < 0.25


@pytest.mark.parametrize("how", HIDING)
def test_a_hidden_gradient_is_sampled(how):
    net, x = Network(HIDING[how]).eval(), torch.randn(3, 70)
    p = hs.Uncertain(net, 0.09, "gradients")(x)
    assert p.method == "noise_sampling"
    assert "hides its gradient" in p.notes[0] or "steps" in p.notes[0]
    assert agrees(p, net, x)


@pytest.mark.parametrize("how", [torch.relu, torch.tanh, lambda h: h.abs(), lambda h: h * h])
def test_an_honest_gradient_is_used(how):
    net, x = Network(how).eval(), torch.randn(3, 70)
    p = hs.Uncertain(net, 0.09, "gradients")(x)
    assert p.method == "gradients" and p.notes == () and agrees(p, net, x)


def test_a_backward_pass_that_fails_is_sampled():
    body = nn.Sequential(nn.Linear(70, 8), nn.Tanh())
    net = Network(lambda h: h).eval()
    net.forward = lambda x: net.last(net.first(x)) + checkpoint(body, x, use_reentrant=True)[:, :2]
    with pytest.warns(UserWarning, match="None of the inputs"):
        p = hs.Uncertain(net, 0.09, "gradients")(torch.randn(2, 70))
    assert p.method == "noise_sampling" and "backward pass failed" in p.notes[0]


def test_random_models_are_sampled_and_reproducible():
    class Random(nn.Module):
        def forward(self, x):
            return x[:, :2] + torch.randn_like(x[:, :2])

    x, before = torch.zeros(4, 5), torch.get_rng_state()
    one, two = (hs.Uncertain(Random().eval(), 0.01, seed=3)(x) for _ in range(2))
    assert torch.equal(one.std, two.std) and torch.equal(one.mean, two.mean)
    assert torch.equal(torch.get_rng_state(), before)
    assert "random numbers" in " ".join(one.notes) and 0.8 < float(one.std.mean()) < 1.2


class Graph(nn.Module):
    """Rows are nodes: they see their neighbours."""

    def __init__(self, nodes):
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("near", torch.softmax(torch.randn(nodes, nodes), 1))
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.near @ torch.tanh(self.first(x)))


class Statistics(nn.Module):
    def __init__(self, detached):
        super().__init__()
        self.layer, self.detached = nn.Linear(6, 2), detached

    def forward(self, x):
        seen = x.detach() if self.detached else x
        return self.layer((x - seen.mean(0)) / seen.std(0))


class OverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x):
        rows = x[:, None]
        return self.attention(rows, rows, rows, need_weights=False)[0][:, 0, :2]


TOGETHER = [Graph(8), Statistics(False), Statistics(True), OverTheBatch()]


@pytest.mark.parametrize("net", TOGETHER, ids=lambda net: type(net).__name__)
def test_rows_that_influence_each_other_are_one_input(net):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    p = hs.Uncertain(net.eval(), 0.01, "gradients")(x)
    assert any("influence each other" in note for note in p.notes)
    assert float((p.std / brute_force(net, x, 0.1) - 1).abs().max()) < 0.2
    said = hs.Uncertain(net, 0.01, "gradients", batch_dim=None)(x)
    torch.testing.assert_close(said.std, p.std)


def test_too_many_rows_together_are_sampled():
    p = hs.Uncertain(Graph(70).eval(), 0.01, "gradients")(torch.randn(70, 6))
    assert p.method == "noise_sampling" and "too many for a backward pass" in p.notes[0]


class InPlace(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.in_place = nn.Linear(70, 2), in_place

    def forward(self, x):
        if self.in_place:
            x[:, 0] = 3 * x[:, 0]
            x.sub_(0.5)
        else:
            x = torch.cat([3 * x[:, :1], x[:, 1:]], 1) - 0.5
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "mc_dropout", "linear"])
def test_a_model_may_write_into_its_input(method):
    x = torch.randn(3, 70)
    kept = x.clone()
    options = {"rate": 0.1, "placement": "before"} if method == "mc_dropout" else {}
    one, two = (
        hs.Uncertain(InPlace(in_place).eval(), 0.01, method, **options)(x)
        for in_place in (True, False)
    )
    assert torch.equal(x, kept)
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.std, two.std, rtol=1e-4, atol=1e-6)


def test_the_model_is_left_as_it_was():
    net = nn.Sequential(nn.Linear(70, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    net[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    hs.Uncertain(net, 0.01, "gradients", rate=0.1)(torch.randn(3, 70))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_policy_with_a_hidden_state(batch):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.GRU(70, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x, state):
            y, state = self.cells(x[:, None], state)
            return self.head(y[:, 0]), state

    net, x, state = Policy().eval(), torch.randn(batch, 70), torch.zeros(1, batch, 8)
    p = hs.Uncertain(net, (0.01, None), "gradients")(x, state)
    assert p.method == "gradients" and p.std[0].shape == (batch, 3)
    assert p.std[1].shape == (1, batch, 8)
    alone = [
        hs.Uncertain(net, (0.01, None), "gradients")(x[i : i + 1], state[:, i : i + 1])
        for i in range(batch)
    ]
    torch.testing.assert_close(
        torch.cat([each.std[0] for each in alone]), p.std[0], rtol=1e-3, atol=1e-6
    )


def test_scripted_and_traced_models_run():
    net, x = nn.Sequential(nn.Linear(70, 8), nn.Tanh(), nn.Linear(8, 2)).eval(), torch.randn(3, 70)
    expected = hs.Uncertain(net, 0.01, "gradients")(x).std
    for model in (
        torch.jit.script(net),
        torch.jit.trace(net, x),
        torch.jit.freeze(torch.jit.script(net)),
    ):
        p = hs.Uncertain(model, 0.01, "gradients")(x)
        assert p.method == "gradients"
        torch.testing.assert_close(p.std, expected, rtol=1e-4, atol=1e-7)


def test_tokens_with_noise_on_their_embeddings_and_with_dropout():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.drop, self.head = (
                nn.Embedding(50, 16),
                nn.Dropout(0.1),
                nn.Linear(16, 2),
            )

        def forward(self, ids=None, embedded=None):
            h = self.table(ids) if embedded is None else embedded
            return self.head(self.drop(torch.tanh(h)).mean(1))

    net, ids = Tokens().eval(), torch.randint(0, 50, (3, 7))
    p = hs.Uncertain(net, {"embedded": 0.01}, "gradients")(embedded=net.table(ids).detach())
    assert p.method == "gradients" and float(p.std.min()) > 0
    p = hs.Uncertain(net, None, "gradients", placement="existing")(ids)
    assert float(p.model_var.min()) > 0 and float(p.data_var.max()) == 0
    with pytest.raises(TypeError, match="floating-point"):
        hs.Uncertain(net, 0.01, "gradients")(ids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "whole number of at least 1"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"tolerance": -1.0}, "between 0 and 1"),
        ({"method": "adjoint"}, "gradients"),
        ({"method": "control_variate"}, "gradients"),
        ({"prediction": "adf"}, '"mean"'),
        ({"noise": float("nan")}, "finite"),
        ({"noise": -1.0}, "negative"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        hs.Uncertain(nn.Linear(3, 1).eval(), **{"noise": 0.1, **options})(torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("sampels", "did you mean `samples`"),
        ("probes", "no option `probes`"),
        ("metod", "`method`"),
    ],
)
def test_an_option_that_there_is_not_is_told(option, words):
    with pytest.raises(TypeError, match=words):
        hs.Uncertain(nn.Linear(2, 1).eval(), 0.1, **{option: 3})


def test_the_old_name_of_a_field_says_the_new():
    p = hs.Uncertain(nn.Linear(2, 1).eval(), 0.1)(torch.zeros(1, 2))
    with pytest.raises(AttributeError, match="linear_share"):
        _ = p.trust


def test_too_many_outputs_are_refused_with_a_remedy():
    net, x = nn.Linear(80, 65).eval(), torch.zeros(1, 80)
    with pytest.raises(ValueError, match="output=lambda"):
        hs.Uncertain(net, 0.1, "gradients")(x)
    assert hs.Uncertain(net, 0.1, "gradients", output=lambda y: y[:, :8])(x).std.shape == (1, 8)


def test_part_of_the_output_by_key_index_and_attribute():
    class Named(nn.Module):
        def forward(self, x):
            return {"a": x[:, :1], "b": (2 * x[:, 1:3], x)}

    x = torch.zeros(2, 70)
    sure = hs.Uncertain(Named().eval(), 1.0, "gradients", output="a")
    torch.testing.assert_close(sure(x).std, torch.ones(2, 1))
    with pytest.raises(ValueError, match="no part of what the model returns"):
        hs.Uncertain(Named().eval(), 1.0, "gradients", output="c")(x)


def test_an_empty_batch_has_an_empty_prediction():
    p = hs.Uncertain(nn.Linear(80, 2).eval(), 0.1, "gradients")(torch.zeros(0, 80))
    assert p.std.shape == (0, 2)


def test_inside_inference_mode_and_with_its_weights():
    with torch.inference_mode():
        net = nn.Linear(80, 2).eval()
        p = hs.Uncertain(net, 0.1, "gradients")(torch.zeros(1, 80))
    expected = 0.1**0.5 * net.weight.clone().square().sum(1).sqrt()
    torch.testing.assert_close(p.std[0], expected)
    weight = torch.ones(2, requires_grad=True)
    (p.mean * weight).sum().backward()


class WithOut(nn.Module):
    """Runs without gradients only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(5, 2).requires_grad_(False)

    def forward(self, x):
        torch.mul(x, 2.0, out=x)
        return self.last(x)


class WithNumpy(WithOut):
    def forward(self, x):
        return self.last(torch.from_numpy(2 * x.numpy()))


@pytest.mark.parametrize("net", [WithOut(), WithNumpy()], ids=["out", "numpy"])
@pytest.mark.parametrize("method", ["gradients", "noise_sampling", "auto"])
def test_a_model_that_runs_without_gradients_only_is_sampled(net, method):
    x = torch.randn(3, 5)
    p = hs.Uncertain(net.eval(), 0.01, method)(x.clone())
    assert p.method == "noise_sampling"
    true = 0.1 * 2 * net.last.weight.square().sum(1).sqrt()
    assert ((p.std - true).abs() < 5 * p.std_error).all()


class ReadsTheFirstRow(WithOut):
    """A plain number of the first row, which has no gradient, moves all."""

    def forward(self, x):
        return self.last(x + float(x[0, 0].detach()))


class ReadsTheLastRow(WithOut):
    def forward(self, x):
        return self.last(x + float(x[-1, 0].detach()))


@pytest.mark.parametrize("net", [ReadsTheFirstRow(), ReadsTheLastRow()], ids=["first", "last"])
@pytest.mark.parametrize("method", ["gradients", "noise_sampling"])
def test_rows_that_share_a_plain_number_are_one_input(net, method):
    x = torch.randn(3, 5)
    p = hs.Uncertain(net.eval(), 0.09, method, samples=None)(x)
    assert any("influence each other" in note for note in p.notes)
    assert ((p.std - brute_force(net, x, 0.3)).abs() < 5 * p.std_error).all()


class Rounded(nn.Module):
    """A straight-through estimator on the sensor's way, and dropout that drowns it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.drop(x + (torch.round(2 * x) / 2 - x).detach()))


def test_masks_do_not_drown_a_hidden_gradient_of_the_sensor():
    x = torch.tensor([[0.26, 1.0, -0.24, 2.0]])
    net = Rounded().eval()
    p = hs.Uncertain(net, 0.03**2, "gradients", placement="existing")(x)
    assert p.method == "noise_sampling"
    assert abs(float(p.data_var.sqrt() / brute_force(net, x, 0.03)) - 1) < 0.3


class Stairs(nn.Module):
    """Logits of which one is flat, with a step that only some inputs reach."""

    def forward(self, x):
        return torch.stack([3 * (x[:, 0] > 0).float(), x[:, 1]], 1)


def test_rows_with_a_step_have_the_probabilities_of_their_samples():
    x = torch.tensor([[-3.0, 0.0]]).repeat(8, 1)
    x = torch.cat([x, torch.tensor([[0.0, 0.0]])])
    p = hs.Uncertain(Stairs().eval(), 0.04, "gradients", task="classification")(x)
    assert "sampled" in "".join(p.notes)
    assert abs(float(p.logits.std[-1, 0]) - 1.5) < 0.2
    assert float(p.std[-1, 0]) > 0.1


class Quarters(nn.Module):
    def forward(self, x):
        return torch.round(4 * x).sum(1, keepdim=True) / 4


@pytest.mark.parametrize("seed", range(10))
def test_a_step_that_few_samples_cross_is_found(seed):
    x = torch.tensor([[0.111, 0.5, -0.5, 0.75]])  # 1.4 std below the step at 0.125
    p = hs.Uncertain(Quarters().eval(), 1e-4, "gradients", seed=seed)(x)
    assert p.method == "noise_sampling"
    assert abs(float(p.std) - 0.068) < 5 * float(p.std_error)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.last = nn.GRUCell(4, 6), nn.Linear(6, 2)

    def forward(self, x, state):
        state = self.cell(x, state[0])
        return self.last(state), state[None]


def test_a_hidden_state_in_fit_calibrate_predict_and_audit():
    x, state = torch.randn(8, 4), torch.zeros(1, 8, 6)
    net, noise = Recurrent().eval(), (0.01, None)
    y = net(x, state)[0].detach() + 0.1 * torch.randn(8, 2)
    sure = hs.Uncertain(net, noise, output=0)
    batches = [((x, state), y)]
    assert sure.fit(batches, model="dropout", show_progress=False).rate is not None
    sure.calibrate(batches)
    assert sure.predict(batches, show_progress=False).std.shape == (8, 2)
    with pytest.raises(TypeError, match="output="):
        hs.Uncertain(net, noise).fit([((x, state), (y, state))], show_progress=False)
    with pytest.raises(ValueError, match="inside a batch"):
        hs.audit(net, (x, state), noise=noise, time_limit=5, show_progress=False)


def test_one_output_of_many_that_hides_its_gradient_is_found_on_long_lines():
    """Outputs that agree on short lines are left out of the long ones; the others are not lost."""

    class Hides(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(80, 32), nn.Linear(32, 6)

        def forward(self, x):
            out = self.last(torch.relu(self.first(x)))
            own = 0.5 * out[:, 4:5] + 0.5 * out[:, 4:5].detach()
            return torch.cat([out[:, :4], own, out[:, 5:]], 1)

    x = torch.randn(4, 80)
    p = hs.Uncertain(Hides().eval(), 0.01, "gradients")(x)
    assert p.method == "noise_sampling" and "hides its gradient" in p.notes[0]
    honest = nn.Sequential(nn.Linear(80, 32), nn.ReLU(), nn.Linear(32, 6)).eval()
    assert hs.Uncertain(honest, 0.01, "gradients")(x).method == "gradients"
