"""laplace-torch on networks of `uci.py`; runs in an environment of its own, without howsure.

python uci_laplace.py ASKED FOUND
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from laplace import Laplace  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WAYS = {
    "laplace-torch, KFAC": {"subset_of_weights": "all", "hessian_structure": "kron"},
    "laplace-torch, last layer": {"subset_of_weights": "last_layer", "hessian_structure": "full"},
}


def network(weights: list[Tensor]) -> nn.Sequential:
    """The network that has these weights and biases, with rectifiers between its layers."""
    layers: list[nn.Module] = []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def predicted(asked: dict[str, Any], way: dict[str, str]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance at the held-out and the test rows; tuned by the marginal likelihood."""
    found = fitted(network(asked["weights"]), TensorDataset(*asked["train"]), way)
    moments = (found(x) for x in asked["at"])
    return [(mean.detach(), var.reshape(-1, 1).detach()) for mean, var in moments]


def fitted(model: nn.Module, train: TensorDataset, way: dict[str, str]) -> Any:
    """The peer's posterior, its prior and its noise tuned by the marginal likelihood."""
    found: Any = Laplace(model, "regression", **way)
    found.fit(DataLoader(train, batch_size=len(train)))
    log_prior, log_sigma = (torch.zeros(1, requires_grad=True) for _ in range(2))
    search = torch.optim.Adam([log_prior, log_sigma], lr=0.1)
    for _ in range(100):
        search.zero_grad()
        (-found.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
        search.step()
    found.prior_precision, found.sigma_noise = log_prior.exp().detach(), log_sigma.exp().detach()
    return found


def main() -> int:
    """Answers all that was asked."""
    torch.set_num_threads(1)
    asked = torch.load(sys.argv[1], weights_only=False)
    found = [{name: predicted(each, way) for name, way in WAYS.items()} for each in asked]
    torch.save(found, sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
