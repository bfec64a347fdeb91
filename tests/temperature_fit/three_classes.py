"""Three classes of points in the plane, a wrapper fitted on them, and points far from all."""

import torch

import howsure as hs

CENTERS = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])

FAR = torch.tensor([[9.0, 9.0], [-30.0, 4.0]])


def blobs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    return CENTERS[labels] + torch.randn(count, 2, generator=generator), labels


def fitted(model, noise=None, held_out=None, options=None, **kwargs):
    sure = hs.Uncertain(model, noise, task="classification", **kwargs)
    sure.fit(held_out or [blobs(200, 1)], **(options or {"train_inputs": blobs(200, 0)[0]}))
    return sure


def labels_of(model, x):
    """What the model says, but for each third input."""
    labels = model(x).argmax(1)
    return torch.where(torch.arange(len(x)) % 3 > 0, labels, torch.arange(len(x)) // 3 % 3)


def with_model_share(prediction, share):
    """A prediction of which the model's share of p (1 - p), (rows,), is known; as a dict."""
    p, noise = prediction.mean, prediction.total_var
    added = share[:, None] * (p * (1 - p) - noise).clamp(min=0)
    expected = (1 - share) * prediction.expected_entropy
    return {
        "mean": p,
        "data_var": prediction.data_var,
        "model_var": prediction.model_var + added,
        "mutual_information": torch.special.entr(p).sum(1) - expected,
        "std_error": prediction.std_error * (1 - share[:, None]) * (noise / (noise + added)).sqrt(),
    }
