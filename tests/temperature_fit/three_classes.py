"""Three classes of points in the plane, a wrapper fitted on them, and points far from all."""

import torch

import howsure as hs

CENTRES = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])

FAR = torch.tensor([[9.0, 9.0], [-30.0, 4.0]])


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    return CENTRES[labels] + torch.randn(count, 2, generator=generator), labels


def fitted(model, noise=None, held_out=None, options=None, **kwargs):
    sure = hs.Uncertain(model, noise, task="classification", **kwargs)
    sure.fit(held_out or [blobs(200, 1)], **(options or {"train_inputs": blobs(200, 0)[0]}))
    return sure


def labels_of(model, x):
    """What the model says, but for each third input."""
    labels = model(x).argmax(1)
    return torch.where(torch.arange(len(x)) % 3 > 0, labels, torch.arange(len(x)) // 3 % 3)
