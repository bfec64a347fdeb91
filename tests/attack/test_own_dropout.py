"""Dropout of every kind: what `placement="existing"` says is what train mode does."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure.multipliers import Placement, find_sites
from howsure.multipliers.inner import run_with_dropout
from howsure.operations import RECURRENT

# Two passes of 3,000 samples differ by 2 to 3 % of a std; 12 % is four times that.
SAMPLES, NEAR = 3000, 0.12


class Attended(nn.Module):
    def __init__(self, rate=0.4, need_weights=False, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True, **options)
        self.head, self.need_weights = nn.Linear(40, 2), need_weights

    def forward(self, x):
        out, weights = self.attention(x, x, x, need_weights=self.need_weights)
        return self.head(out.flatten(1)) + (0 if weights is None else weights.sum((1, 2))[:, None])


class Scaled(nn.Module):
    """As in timm and transformers: the rate is given in train mode only."""

    def __init__(self, rate=0.4, causal=False):
        super().__init__()
        self.qkv, self.head, self.rate, self.causal = (
            nn.Linear(8, 24),
            nn.Linear(40, 2),
            rate,
            causal,
        )

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.causal)
        return self.head(out.transpose(1, 2).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, packed=False, **options):
        super().__init__()
        self.cells = kind(8, 6, 3, dropout=0.4, batch_first=True, **options)
        size = options.get("proj_size", 6) * (2 if options.get("bidirectional") else 1)
        self.head, self.packed = nn.Linear(size, 2), packed

    def forward(self, x):
        if self.packed:
            x = nn.utils.rnn.pack_padded_sequence(x, [5] * len(x), batch_first=True)
            out = nn.utils.rnn.pad_packed_sequence(self.cells(x)[0], batch_first=True)[0]
            return self.head(out[:, -1])
        return self.head(self.cells(x)[0][:, -1])


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 8), nn.Linear(8, 2), nn.Dropout(0.2)

    def forward(self, x):
        kept = torch.rand(len(x), 1) > 0.3 if self.training else 1.0
        return self.b(self.drop(x + self.a(x) * kept))


def features(kind):
    return nn.Sequential(nn.Conv1d(5, 12, 3), nn.SELU(), kind, nn.Flatten(), nn.Linear(72, 2))


NETWORKS = {
    "AlphaDropout": lambda: features(nn.AlphaDropout(0.3)),
    "FeatureAlphaDropout": lambda: features(nn.FeatureAlphaDropout(0.3)),
    "Dropout1d": lambda: features(nn.Dropout1d(0.3)),
    "attention": Attended,
    "attention that returns weights": lambda: Attended(need_weights=True),
    "attention with a bias of keys": lambda: Attended(add_bias_kv=True),
    "attention with a key of zeros": lambda: Attended(add_zero_attn=True),
    "attention without bias": lambda: Attended(bias=False),
    "scaled_dot_product_attention": Scaled,
    "causal attention": lambda: Scaled(causal=True),
    "LSTM": Recurrent,
    "LSTM with projections": lambda: Recurrent(proj_size=4),
    "GRU in two directions": lambda: Recurrent(nn.GRU, bidirectional=True),
    "RNN": lambda: Recurrent(nn.RNN),
    "encoder layer": lambda: nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True), nn.Flatten(), nn.Linear(40, 2)
    ),
}


def train_mode_std(net, x):
    """The std over dropout masks of a copy in train mode."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        twin = copy.deepcopy(net).train()
        return twin(x.repeat(SAMPLES, 1, 1)).unflatten(0, (SAMPLES, -1)).std(0)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize("name", NETWORKS)
def test_existing_dropout_has_the_std_of_train_mode(name):
    torch.manual_seed(1)
    net, x = NETWORKS[name]().eval(), torch.randn(3, 5, 8)
    truth = train_mode_std(net, x)
    sure = hs.Uncertain(net, method="mc_dropout", placement="existing", samples=SAMPLES)
    torch.testing.assert_close(sure(x).std, truth, rtol=NEAR, atol=0)
    p = hs.Uncertain(net, placement="existing", tolerance=0.03)(x)
    gap = (p.std - truth).abs() / (p.std_error + NEAR / 3 * truth)
    # A Gaussian with the variance of a mask is not the mask: a fifth of it at large rates.
    assert gap.median() < 3 and (p.std / truth - 1).abs().max() < 0.25
    assert not any("not counted" in note for note in p.notes)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 5, "vdim": 7}]
)
@pytest.mark.parametrize("has_batch", [True, False])
def test_attention_step_by_step_is_that_of_torch(batch_first, options, has_batch):
    net = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=batch_first, **options).eval()
    sizes = 8, options.get("kdim", 8), options.get("vdim", 8)
    q, k, v = (torch.randn(3, 3, size) if has_batch else torch.randn(3, size) for size in sizes)
    mask = torch.zeros(3, 3).index_put((torch.tensor([0]), torch.tensor([2])), torch.tensor(-1e9))
    names = []

    class StepByStep(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.multi_head_attention_forward:
                names.append(func.__name__)
                return run_with_dropout(func.__name__, func, args, kwargs, lambda weights: weights)
            return func(*args, **(kwargs or {}))

    for average in (True, False):
        expected = net(q, k, v, attn_mask=mask, average_attn_weights=average)
        with StepByStep():
            result = net(q, k, v, attn_mask=mask, average_attn_weights=average)
        torch.testing.assert_close(result, expected)
    assert len(names) == 2


@pytest.mark.parametrize("gqa", [True, False])
def test_scaled_attention_step_by_step_is_that_of_torch(gqa):
    q, k, v = torch.randn(2, 4, 5, 8), *torch.randn(2, 2, 2 if gqa else 4, 6, 8)
    allowed = torch.rand(2, 1, 5, 6) > 0.4
    allowed[0, 0, 0] = False  # a query without any key
    for mask in (None, allowed, torch.randn(5, 6)):
        given = {"attn_mask": mask, "scale": 0.3, "enable_gqa": gqa}
        name, func = "scaled_dot_product_attention", F.scaled_dot_product_attention
        result = run_with_dropout(name, func, (q, k, v), given, lambda weights: weights)
        torch.testing.assert_close(result, func(q, k, v, **given))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_one_by_one_are_those_of_torch(kind, bidirectional, bias):
    net = kind(3, 4, 3, dropout=0.5, bidirectional=bidirectional, bias=bias).eval()
    x, calls = torch.randn(5, 2, 3), []

    class LayerByLayer(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            name = getattr(func, "__name__", "")
            if name in RECURRENT:

                def drop(data):
                    calls.append(data.shape)
                    return data

                return run_with_dropout(name, func, args, {}, drop)
            return func(*args, **(kwargs or {}))

    expected = net(x)
    with LayerByLayer():
        result = net(x)
    torch.testing.assert_close(result, expected)
    assert calls == [torch.Size((5, 2, 8 if bidirectional else 4))] * 2


def test_what_is_not_counted_is_named():
    x = torch.randn(4, 5, 8)
    packed = nn.Sequential(nn.Dropout(0.1), Recurrent(packed=True)).eval()
    p = hs.Uncertain(packed, placement="existing", method="mc_dropout")(x)
    assert any("`1.cells`" in note and "packed" in note for note in p.notes)
    p = hs.Uncertain(StochasticDepth().eval(), placement="existing")(x[:, 0])
    assert any("stochastic depth" in note for note in p.notes)
    alone = Recurrent(packed=True).eval()
    with pytest.raises(ValueError, match="sequence is packed"):
        hs.Uncertain(alone, placement="existing")(x)
    with pytest.raises(ValueError, match="has no dropout of its own"):
        hs.Uncertain(nn.Linear(8, 2).eval(), placement="existing")(x)


def test_automatic_placement_does_not_go_inside_layers():
    x = torch.randn(2, 5, 8)
    assert [s.name for s in find_sites(Attended().eval(), x, Placement())] == ["attention"]
    net = Attended().eval()
    assert [s.name for s in find_sites(net, x, Placement("existing"))] == ["attention:weights"]


def test_a_row_does_not_depend_on_its_batch():
    net, x = Scaled().eval(), torch.randn(4, 5, 8)
    sure = hs.Uncertain(net, placement="existing", method="mc_dropout", samples=50)
    torch.testing.assert_close(sure(x).std[2:3], sure(x[2:3]).std, rtol=1e-4, atol=1e-6)


# Gaussian multipliers gave 1.3 to 1.4 times the std: they have no upper limit, kept units have one.
@pytest.mark.parametrize("seed", range(3))
def test_a_max_pool_over_dropped_units(seed):
    torch.manual_seed(seed)
    pooled = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2)]
    head = [nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, 1)]
    model, x = nn.Sequential(*pooled, *head).eval(), torch.rand(1, 1, 28, 28)
    p = hs.Uncertain(model, 0.01, "gradients", placement="existing")(x)
    pooled[2].train()
    with torch.no_grad():
        draws = torch.cat([model(x + 0.1 * torch.randn_like(x)) for _ in range(2000)])
    gap = abs(float(p.std) - float(draws.std()))
    assert gap < 0.05 * float(draws.std()) + 4 * float(p.std_error)
    assert p.method == "noise_sampling" and "own dropout" in p.notes[0]
