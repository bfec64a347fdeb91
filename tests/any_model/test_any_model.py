"""Any model as it is: a prediction by default, a fit, and settings that come back from a file."""

import pytest
import torch
from torch import nn
from users_models import (
    STATE,
    STEPS,
    TOKENS,
    Autocast,
    Lightning,
    ModelOutput,
    Policy,
    Pose,
    Recurrent,
    Returns,
    Tokens,
    Two,
    X,
    Y,
    called,
    held_out,
    mlp,
    rows,
)

import howsure as hs

CASES = {
    "key": (lambda: Returns(lambda y, x: {"pose": y, "x": x}), X, {"output": "pose"}),
    "index": (lambda: Returns(lambda y, x: (x, y)), X, {"output": 1}),
    "attribute": (lambda: Returns(Pose), X, {"output": "pose"}),
    "output of a class": (
        lambda: Returns(lambda y, x: ModelOutput(logits=y, hidden=x)),
        X,
        {"output": "logits"},
    ),
    "index of a class": (lambda: Returns(lambda y, x: ModelOutput(logits=y)), X, {"output": 0}),
    "by keyword": (Two, {"image": X, "motion": X}, {"noise": {"image": 0.01, "motion": 0.02}}),
    "by position": (Two, (X, X), {"noise": (0.01, None)}),
    "hidden state": (Recurrent, (STEPS, STATE), {"noise": (0.01, None), "output": 0}),
    "tokens and numbers": (Tokens, (TOKENS, X), {"noise": (None, 0.01)}),
    "DataParallel": (lambda: nn.DataParallel(mlp()), X, {}),
    "compiled": (lambda: torch.compile(mlp()), X, {}),
    "bfloat16": (lambda: mlp().bfloat16(), X.bfloat16(), {}),
    "half": (lambda: mlp().half(), X.half(), {}),
    "autocast": (Autocast, X, {}),
    "Lightning": (Lightning, X, {}),
    "distribution": (Policy, X, {"output": "mean"}),
    "numpy": (mlp, X.double().numpy(), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_predict_fit_and_saved_settings(name, tmp_path):
    build, x, options = CASES[name]
    model = build().eval()
    sure = hs.Uncertain(model, **{"noise": 0.01, **options})
    few = rows(x, 0, 4)
    before = called(sure, few)
    assert before.std.shape == (4, 2) and bool((before.data_var > 0).all())
    assert len(before) == 4 and len(before[1:3]) == 2
    targets = Y.numpy() if name == "numpy" else Y.to(before.mean.dtype)
    sure.fit(held_out(x, targets), show_progress=False)
    after = called(sure, few)
    assert sure.setup.variance_model is not None
    assert bool((after.model_var > 0).any()) and bool((after.total_var > before.total_var).all())
    sure.save(tmp_path / "settings.pt")
    again = called(hs.Uncertain.load(tmp_path / "settings.pt", model), few)
    torch.testing.assert_close(again.total_var, after.total_var, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_torchscript_predicts_and_has_no_masks(kind):
    python = mlp()
    model = torch.jit.script(python) if kind == "scripted" else torch.jit.trace(python, X[:4])
    expected = hs.Uncertain(python, noise=0.01)(X[:4])
    torch.testing.assert_close(hs.Uncertain(model, noise=0.01)(X[:4]).std, expected.std)
    sure = hs.Uncertain(model, noise=0.01)
    result = sure.fit(held_out(X, Y), show_progress=False)
    assert "use the Python module" in result.notes[0]
    p = sure(torch.cat([X[:4], 100 * X[:4]]))
    assert bool((p.novelty[4:] > 3).all()) and p.std[4:].mean() > p.std[:4].mean()


def test_a_compiled_model_has_the_masks_of_its_module():
    def never(graph, example):
        raise AssertionError("it must not be compiled")

    python, compiled = mlp(), torch.compile(mlp(), backend=never)
    for method in ("auto", "gradients", "mc_dropout", "sampled_adf"):
        one, two = (
            hs.Uncertain(each, noise=0.01, rate=0.1, method=method)(X[:4])
            for each in (python, compiled)
        )
        torch.testing.assert_close(one.std, two.std, rtol=0, atol=0)
