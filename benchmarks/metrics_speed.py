"""Every metric on one million predictions, one core: `python benchmarks/metrics_speed.py`.

Writes benchmarks/results/metrics_speed.json: seconds of processor time per metric, and in all.
"""

import time

import torch
from bench import RESULTS, write

import howsure.metrics as M


def _calls(n, classes):
    g = torch.Generator().manual_seed(0)
    mean, target, var = (torch.randn(n, generator=g) for _ in range(3))
    gaussian = (mean, var.square() + 0.1, target)
    error = (mean - target).abs()
    probabilities = torch.randn(n, classes, generator=g).softmax(1)
    labels = torch.randint(classes, (n,), generator=g)
    fields = torch.randn(n, 2, generator=g), torch.randn(n, 2, generator=g)
    return {
        gaussian: [M.nll, M.crps, M.interval_score, M.coverage, M.ence, M.spread_curve,
                   M.calibration_curve, M.miscalibration_area],
        gaussian[1:2]: [M.sharpness],
        (mean, target): [M.rmse, M.mae, M.explained_variance],
        fields: [M.epe, M.kl_of_fitted_gaussians],
        (error, gaussian[1]): [M.ause, M.aurc, M.sparsification_curve, M.risk_coverage_curve,
                               M.rank_correlation],
        (gaussian[1], error > 1): [M.auroc],
        (probabilities, labels): [M.accuracy, M.categorical_nll, M.brier, M.ece, M.ace,
                                  M.reliability_curve],
        (probabilities, probabilities + 0.1, labels): [M.one_hot_nll],
    }  # fmt: skip


def main():
    torch.set_num_threads(1)
    seconds = {}
    for data, metrics in _calls(1_000_000, classes=10).items():
        for metric in metrics:
            # Processor time, which other work on the machine changes less than the clock.
            start = time.process_time()
            metric(*data)
            seconds[metric.__name__] = round(time.process_time() - start, 4)
    total = round(sum(seconds.values()), 3)
    result = {"predictions": 1_000_000, "seconds": seconds, "total_seconds": total}
    write(RESULTS / "metrics_speed.json", result)
    print(f"{len(seconds)} metrics, {total} s in all")


if __name__ == "__main__":
    main()
