"""Recipes for other tools run with those tools, where they are installed."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning has warnings of its own.
def test_lightning_predicts_with_error_bars(capsys):
    pytest.importorskip("pytorch_lightning")
    runpy.run_path(str(EXAMPLES / "lightning_predict.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "'std': (100, 1)" in printed and "'low': (100, 1)" in printed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # So has MLflow.
def test_mlflow_gets_metrics_and_settings_that_load(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    # The small package, mlflow-skinny, has no database; folders must be allowed by name.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    names = runpy.run_path(str(EXAMPLES / "mlflow_log.py"), run_name="__main__")
    run = mlflow.last_active_run()
    assert 0.88 < run.data.metrics["coverage_95"] <= 1 and "nll" in run.data.metrics
    (settings,) = tmp_path.rglob("howsure.pt")
    torch = names["torch"]
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    sure = names["hs"].Uncertain.load(settings, model.eval())
    assert (sure(torch.randn(3, 2)).model_var > 0).all()
