"""Recurrent modules run unmodified, in every configuration."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import howsure as hs

CONFIGURATIONS = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "num_layers": 2},
]
NETWORKS = [nn.RNN, nn.GRU, nn.LSTM]


def _leaves(tree):
    return pytree.tree_leaves(tree)


def _assert_plain_without_noise(model, *inputs):
    expected = model(*inputs)
    out = hs.propagate(model, inputs, (0.0, *[None] * (len(inputs) - 1)))
    for value, plain in zip(_leaves(out.mean), _leaves(expected), strict=True):
        torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)
    assert all(bool((var == 0).all()) for var in _leaves(out.var))


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_network_without_noise_is_plain(network, options):
    model = network(3, 4, **options).eval()
    _assert_plain_without_noise(model, torch.randn(5, 2, 3))
    _assert_plain_without_noise(model, torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_relu_network_and_projection():
    _assert_plain_without_noise(nn.RNN(3, 4, nonlinearity="relu").eval(), torch.randn(5, 2, 3))
    model = nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2).eval()
    _assert_plain_without_noise(model, torch.randn(5, 2, 3))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_start_state_may_carry_the_noise(network):
    model, x, state = network(3, 4).eval(), torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    many = network is nn.LSTM
    hx, var = ((state, state), (0.1, None)) if many else (state, 0.1)
    out = hs.propagate(model, (x, hx), (None, var))
    assert all(bool((v > 0).all()) for v in _leaves(out.var))


class Packed(nn.Module):
    """Packs a padded batch, runs a network, and pads the result again."""

    def __init__(self, network, enforce_sorted=True):
        super().__init__()
        self.network = network
        self.enforce_sorted = enforce_sorted

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=self.enforce_sorted)
        out, state = self.network(packed)
        return pad_packed_sequence(out)[0], state


@pytest.mark.parametrize("lengths", [[5, 3, 1], [2, 5, 4]], ids=str)
@pytest.mark.parametrize("options", CONFIGURATIONS[:3], ids=str)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_packed_sequences(network, options, lengths):
    model = Packed(network(3, 4, **options), enforce_sorted=lengths[0] == 5).eval()
    x, counts = torch.randn(5, 3, 3), torch.tensor(lengths)
    _assert_plain_without_noise(model, x, counts)
    together = hs.propagate(model, (x, counts), (0.04, None))
    for row, length in enumerate(lengths):
        alone = hs.propagate(model.network, x[:length, row : row + 1], 0.04)
        torch.testing.assert_close(
            together.var[0][:length, row], alone.var[0][:, 0], rtol=1e-4, atol=1e-7
        )
        assert bool((together.var[0][length:, row] == 0).all())


def test_packed_sequence_as_the_input():
    packed = pack_padded_sequence(torch.randn(5, 3, 3), torch.tensor([5, 3, 1]))
    model = nn.LSTM(3, 4).eval()
    out = hs.propagate(model, packed, (0.01, None, None, None))
    torch.testing.assert_close(out.mean[0].batch_sizes, packed.batch_sizes)
    assert out.var[0].data.shape == (9, 4) and bool((out.var[0].data > 0).all())


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell], ids=lambda c: c.__name__)
def test_cell_equals_a_network_of_one_step(cell):
    network = {nn.RNNCell: nn.RNN, nn.GRUCell: nn.GRU, nn.LSTMCell: nn.LSTM}[cell](3, 4).eval()
    single = cell(3, 4).eval()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    single.load_state_dict({name: getattr(network, f"{name}_l0") for name in names})
    x = torch.randn(2, 3)
    one, many = hs.propagate(single, x, 0.04), hs.propagate(network, x[None], 0.04)
    torch.testing.assert_close(_leaves(one.mean)[0], many.mean[0][0])
    torch.testing.assert_close(_leaves(one.var)[0], many.var[0][0])


def test_dropout_between_layers_is_refused_in_train_mode():
    model = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    with pytest.raises(hs.NoRuleError, match="eval"):
        hs.propagate(model.train(), torch.randn(5, 2, 3), 0.1)
    hs.propagate(model.eval(), torch.randn(5, 2, 3), 0.1)


@pytest.mark.parametrize("network", [nn.GRU, nn.LSTM], ids=lambda network: network.__name__)
def test_noise_at_every_step_agrees_with_sampling(network):
    torch.manual_seed(0)
    model = network(4, 8).eval()
    x = torch.randn(10, 1, 4)
    with torch.no_grad():
        out = hs.propagate(model, x, 0.01)
        draws = model(x + 0.1 * torch.randn(10, 4000, 4))[0]
    ratio = (out.var[0][-1, 0] / draws[-1].var(0)).sqrt()
    assert float(ratio.min()) > 0.8 and float(ratio.max()) < 1.25
