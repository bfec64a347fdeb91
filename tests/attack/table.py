"""Every public method with its main settings, and a network that it can serve."""

from __future__ import annotations

import torch
from torch import nn

import howsure as hs
from howsure.methods import METHODS

WIDTH = 5


def network(seed=0):
    """A small network with dropout of its own, which is off."""
    torch.manual_seed(seed)
    layers = nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    return nn.Sequential(*layers).eval()


def _headed():
    model = hs.add_variance_head(network(), torch.zeros(1, WIDTH))
    return model.eval()


def _several():
    return nn.ModuleList([network(0), network(1)])


NETWORKS = {"heteroscedastic": _headed, "ensemble": _several}
DROPOUT = {"rate": 0.1}
# (method, settings): the main ones of each.
TABLE = [
    ("auto", {}),
    ("auto", DROPOUT),
    ("gradients", {}),
    ("gradients", DROPOUT),
    ("gradients", {"tolerance": 0.2}),
    ("gradients", {"prediction": "mean"}),
    ("gradients", {"task": "classification"}),
    ("linear", {}),
    ("linear", {"task": "classification"}),
    ("noise_sampling", {}),
    ("noise_sampling", DROPOUT),
    ("noise_sampling", {"tolerance": 0.1}),
    ("noise_sampling", {"task": "classification"}),
    ("mc_dropout", DROPOUT),
    ("mc_dropout", {"placement": "existing"}),
    ("mc_dropout", {**DROPOUT, "task": "classification"}),
    ("adf", {}),
    ("adf", {"prediction": "network"}),
    ("sampled_adf", DROPOUT),
    ("sampled_adf", {"placement": "existing"}),
    ("constant", {"residual_var": 0.3}),
    ("heteroscedastic", {}),
    ("heteroscedastic", DROPOUT),
    ("ensemble", {}),
    ("ensemble", DROPOUT),
]
NAMES = [f"{method} {options}" for method, options in TABLE]


def missing():
    """Public methods that the table leaves out."""
    return {"auto", *METHODS} - {method for method, _ in TABLE}


def model_for(method):
    """A network that the method can serve."""
    return NETWORKS.get(method, network)()


def uncertain(method, options, model=None, noise=0.01, **more):
    """The wrapper of a row of the table."""
    return hs.Uncertain(model or model_for(method), noise, method, **{**options, **more})
