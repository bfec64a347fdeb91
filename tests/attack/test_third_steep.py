"""Third attack, steep functions of a few units: of 48 rows many lie beside a steep part."""

import math

import pytest
import torch
from second import Applied, inputs
from third import EXPLAINED, some_fast, spread
from torch.nn import functional as F

import howsure as hs

ROWS, WIDTH, VAR = 48, 100, 0.01
CENTERS = torch.linspace(-1, 1, 4)
HEADS = {
    "sigmoid, slope 20": lambda z: (20 * z).sigmoid(),
    "sigmoid": torch.sigmoid,
    "tanh, slope 20": lambda z: (20 * z).tanh(),
    "softplus, slope 20": lambda z: F.softplus(z, beta=20),
    "group norm of two": lambda z: F.group_norm(z, 4),
    "alarm": lambda z: z + 5 * (z > 0.3),
    "rectifier": torch.relu,
    "sigmoid, slope 50": lambda z: (50 * z).sigmoid(),
    "softplus, slope 5": lambda z: F.softplus(z, beta=5),
    "exponential, slope 20": lambda z: (20 * z).exp(),
    "bump": lambda z: (-100 * z.square()).exp(),
    "layer norm of two": lambda z: F.layer_norm(z.reshape(-1, 4, 2), (2,)).flatten(1),
    "histogram": lambda z: torch.sigmoid(20 * (z[:, :, None] - CENTERS)).sum(1),
    "softmax, slope 50": lambda z: (50 * z).softmax(-1),
    "largest, nearly": lambda z: (50 * z).logsumexp(-1, keepdim=True) / 50,
    "erf, slope 30": lambda z: torch.erf(30 * z),
    "silu, slope 20": lambda z: F.silu(20 * z),
    "arctan, slope 50": lambda z: (50 * z).atan(),
    "rational": lambda z: 1 / (1e-3 + z.square()),
    "sine": lambda z: (30 * z).sin(),
    "ninth power": lambda z: (3 * z) ** 9,
    "direction of two": lambda z: F.normalize(z.reshape(-1, 4, 2), dim=-1).flatten(1),
    "threshold": lambda z: F.threshold(z, 0.1, -1.0),
    "rounded": lambda z: (4 * z).round() / 4,
    "logarithm": lambda z: (z.abs() + 1e-3).log(),
    "tanh": torch.tanh,
    "softplus": F.softplus,
}
# Of sums of several steep functions, few units are not all that an output owes to, and of others
# points in the tail see nothing at all (docs/gradients.md, where it fails).
SHARE = {"histogram": 0.07, "erf, slope 30": 0.02, "arctan, slope 50": 0.01}


def truth(model, head, x, draws=20_000):
    """Monte Carlo of the few units alone, whose noise is Gaussian: no sample of the inputs."""
    with torch.no_grad():
        weight, units = model.first.weight.double(), model.first(x).double()
        root = torch.linalg.cholesky(weight @ weight.T) * math.sqrt(VAR)
        generator = torch.Generator().manual_seed(3)
        values = []
        for _ in range(draws // 2000):
            z = torch.randn(2000, ROWS, len(root), generator=generator, dtype=torch.float64)
            out = head((units + z @ root.T).float().flatten(0, 1))
            values.append(out.double().reshape(2000, -1))
        return spread(torch.cat(values))


@pytest.mark.parametrize("name", some_fast(HEADS, 3))
def test_steep_functions_of_few_units(name):
    model, x = Applied(HEADS[name], WIDTH, "end").eval(), inputs(ROWS, WIDTH, seed=5)
    std, error = truth(model, HEADS[name], x)
    p = hs.Uncertain(model, VAR)(x)
    found, stated = (t.double().reshape(std.shape) for t in (p.std, p.std_error.nan_to_num(0)))
    rounding = 2e-7 * (std.max() + p.mean.abs().max())
    allowed = 0.1 * std + 4 * (stated.square() + error.square()).sqrt() + rounding
    off = (found - std).abs() > allowed
    if any(word in note for word in EXPLAINED for note in p.notes):
        off &= found > 0
    assert float(off.double().mean()) <= SHARE.get(name, 0.0), (found / std)[off]
