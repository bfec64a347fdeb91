"""How the data of each metric are drawn; a test makes sure that none is missing."""

import torch

import howsure.metrics as M

N = 48
NAN = float("nan")


def normal(g, *shape):
    return torch.randn(N, *shape, generator=g, dtype=torch.float64)


def rounded(g, *shape):
    """Positive, with ties."""
    return 0.1 + (4 * torch.rand(N, *shape, generator=g, dtype=torch.float64)).round()


def points(g):
    return normal(g, 2), normal(g, 2)


def gaussians(g):
    return normal(g, 2), rounded(g, 2), normal(g, 2)


def variances(g):
    return (rounded(g, 2),)


def innovations(g):
    root = normal(g, 2, 2)
    return normal(g, 2), root @ root.mT + 0.1 * torch.eye(2, dtype=torch.float64)


def estimates(g):
    return (*innovations(g), normal(g, 2))


def classes(g):
    # Probabilities that are multiples of 1/8, so that many are tied.
    counts = torch.ones(N, 3, dtype=torch.float64)
    draws = torch.randint(3, (N, 5), generator=g)
    counts.scatter_add_(1, draws, torch.ones(N, 5, dtype=torch.float64))
    return counts / 8, torch.randint(3, (N,), generator=g)


def class_gaussians(g):
    probabilities, target = classes(g)
    return probabilities, rounded(g, 3), target


def errors(g):
    return normal(g, 2).abs(), rounded(g, 2)


def detections(g):
    return rounded(g, 2), torch.rand(N, 2, generator=g) > 0.4


DATA = {
    M.nll: gaussians,
    M.crps: gaussians,
    M.interval_score: gaussians,
    M.coverage: gaussians,
    M.sharpness: variances,
    M.calibration_curve: gaussians,
    M.miscalibration_area: gaussians,
    M.spread_curve: gaussians,
    M.ence: gaussians,
    M.rmse: points,
    M.mae: points,
    M.explained_variance: points,
    M.epe: points,
    M.kl_of_fitted_gaussians: points,
    M.nees: estimates,
    M.nis: innovations,
    M.accuracy: classes,
    M.one_hot_nll: class_gaussians,
    M.categorical_nll: classes,
    M.brier: classes,
    M.reliability_curve: classes,
    M.ece: classes,
    M.ace: classes,
    M.sparsification_curve: errors,
    M.ause: errors,
    M.risk_coverage_curve: errors,
    M.aurc: errors,
    M.auroc: detections,
    M.rank_correlation: errors,
}
OPTIONS = {
    M.nll: {"include_constant": True, "floor": 0.5},
    M.interval_score: {"level": 0.5},
    M.coverage: {"level": 0.5},
    M.calibration_curve: {"levels": (0.1, 0.5, 0.8)},
    M.miscalibration_area: {"levels": (0.1, 0.5, 0.8)},
    M.ence: {"bins": 3},
    M.kl_of_fitted_gaussians: {"direction": "predicted||true"},
    M.one_hot_nll: {"reduction": "none", "include_constant": True},
    M.brier: {"reduction": "sum"},
    M.ece: {"bins": 7},
    M.ace: {"bins": 4},
    M.ause: {"normalize": False},
}
PER_ROW = {
    metric
    for metric, draw in DATA.items()
    if draw in (classes, class_gaussians, innovations, estimates)
}
