"""Uncertainty in MLflow: how good the error bars are as metrics, and what `fit` found as a file.

Run: `pip install howsure mlflow`, `python examples/mlflow_log.py`, `mlflow ui`
"""

import tempfile
from pathlib import Path

import mlflow
import torch

import howsure as hs


def log(sure, inputs, targets):
    """The recipe: logs metrics on test data, and the settings for `hs.Uncertain.load`."""
    p = sure(inputs)
    t = {"degrees_of_freedom": p.degrees_of_freedom}
    mlflow.log_params({"method": p.method, "held_out": repr(sure.last_fit).splitlines()[0][:200]})
    mlflow.log_metrics(
        {
            "rmse": float((p.mean - targets).square().mean().sqrt()),
            "nll": float(hs.metrics.nll(p.mean, p.total_var, targets, **t)),
            "coverage_95": float(
                hs.metrics.coverage(p.mean, p.total_var, targets, level=0.95, **t)
            ),
            "model_share": float((p.model_var / p.total_var).mean()),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        sure.save(Path(folder) / "howsure.pt")
        mlflow.log_artifact(str(Path(folder) / "howsure.pt"))


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(600, 2)
    y = model(x).detach() + 0.1 * torch.randn(600, 1)
    sure = hs.Uncertain(model.eval(), noise=hs.noise.std(0.05))
    sure.fit(x[:300], y[:300], show_progress=False)
    with mlflow.start_run():
        log(sure, x[300:], y[300:])
    print("Logged: rmse, nll, coverage_95, model_share, howsure.pt")


if __name__ == "__main__":
    main()
