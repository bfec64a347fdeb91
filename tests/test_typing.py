"""What an editor knows about a user's script: types of a prediction, and typos in options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import howsure

SCRIPT = """
import torch
from torch import nn

import howsure as hs

model = nn.Linear(3, 1).eval()
sure = hs.Uncertain(model, noise=hs.noise.std(0.1), seed=1)
sure.fit([(torch.zeros(60, 3), torch.zeros(60, 1))], show_progress=False)
p = sure(torch.zeros(2, 3))
reveal_type(p.mean)
reveal_type(p.std)
reveal_type(p.interval(0.95)[0])
reveal_type(hs.Ensemble([model, model])(torch.zeros(2, 3)).std)
reveal_type(p.distribution())
reveal_type(hs.report(sure, [], "report.html"))
hs.report.Options(title="Roads")
hs.Uncertain(model, taks="classification")
sure.fit([], trian_inputs=torch.zeros(60, 3))
hs.report(sure, [], "report.html", optoins=None)
"""


def test_an_editor_knows_predictions_and_marks_typos(tmp_path):
    pytest.importorskip("basedpyright")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    source = Path(howsure.__file__).parent.parent
    settings = {"extraPaths": [str(source)], "typeCheckingMode": "standard", "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "--project", str(tmp_path)], capture_output=True, text=True, check=False
    )
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    revealed = [d["message"] for d in diagnostics if d["severity"] == "information"]
    types = [message.rpartition(" is ")[2].strip('"') for message in revealed]
    assert types == ["Tensor"] * 4 + ["Distribution", "Path"]
    errors = [d["message"] for d in diagnostics if d["severity"] == "error"]
    assert len(errors) == 3, errors
    for typo in ("taks", "trian_inputs", "optoins"):
        assert any(typo in message for message in errors)
