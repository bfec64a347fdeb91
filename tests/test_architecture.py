"""Imports go one way, the package costs torch alone, and a rule is one file."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import howsure as hs
from howsure.registry import EXACT, Rule, find, register, registered, rule, unregister
from howsure.samples import one_of_each_shape
from howsure.testing import check_rule

PACKAGE = Path(hs.__file__).parent

# Lower layers know nothing of higher ones (DESIGN, section 3).
LAYERS = [
    ["errors", "concrete", "contents", "structure", "moments", "files", "progress"],
    ["eval_mode", "gate"],
    ["budget", "freed_memory", "narrow"],
    ["blocks", "normal", "unit_tail", "quadrature", "samples", "squares", "call_site"],
    ["registry", "inputs", "noise", "metrics", "batch_statistics"],
    ["families", "gaussian"],
    ["rules", "fallbacks", "interpreter", "prefix"],
    ["propagation"],
    ["survey", "tracing", "testing", "checking", "rule_table", "dropout", "heteroscedastic"],
    ["prediction", "setup"],
    ["calls"],
    ["gradients"],
    ["methods"],
    ["objectives", "validation_data", "tune", "training", "compat"],
    ["calibrate", "compiling", "saved_settings"],
    ["uncertain", "ensemble"],
    ["auditing", "plots", "exporting", "reading"],
    ["scoring", "distributed"],
    ["report"],
    ["experiments"],
    ["digits", "demo", "starter"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
            parts = node.module.split(".")[1:]
            yield from parts[:1] or [alias.name for alias in node.names]


def test_every_part_has_a_layer():
    parts = {p.stem for p in PACKAGE.glob("*.py")} | {p.parent.name for p in PACKAGE.glob("*/*.py")}
    assert parts - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("part", LEVEL)
def test_imports_go_one_way(part):
    folder = PACKAGE / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]
    for path in files:
        for other in imported_parts(path):
            above = other != part and LEVEL.get(other, -1) >= LEVEL[part]
            assert not above or _same_level_is_fine(part, other), f"{part} imports {other}"


def _same_level_is_fine(part, other):
    return LEVEL[part] == LEVEL[other] and LAYERS[LEVEL[part]].index(other) < LAYERS[
        LEVEL[part]
    ].index(part)


def run_python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, **options
    )


def test_import_costs_torch_alone():
    result = run_python("""
        import sys, howsure
        heavy = {"matplotlib", "torchvision", "torchmetrics", "scipy", "sklearn", "safetensors"}
        print(sorted(heavy & set(sys.modules)))
    """)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_works_beside_a_broken_torchvision(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    result = run_python(
        """
        import howsure, torch
        print(howsure.propagate(torch.nn.ReLU(), torch.ones(2), 0.1).var.shape)
    """,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )
    assert "torch.Size([2])" in result.stdout, result.stderr


def test_a_new_rule_is_one_registration_and_the_laws_see_it():
    @rule(torch.special.i0e, name="toy", fidelity=EXACT, samples=one_of_each_shape, pointwise=True)
    def toy(input):
        """Wrong on purpose: the variance passes through.

        Assumes: nothing.

        Source: a test.
        """
        return hs.Moments(torch.special.i0e(input.mean), input.var)

    try:
        assert toy in registered() and find(torch.special.i0e) is toy
        with pytest.raises(AssertionError, match="`toy` breaks the law `oracle`"):
            check_rule(toy)
    finally:
        unregister(toy)
    assert find(torch.special.i0e) is None


def test_a_user_rule_serves_a_model_and_satisfies_the_laws():
    from howsure.families import elementwise

    new = elementwise(torch.special.i0e, name="i0e")
    try:
        check_rule(new)
        out = hs.propagate(torch.special.i0e, torch.zeros(3), 0.1)
        assert bool((out.var > 0).all())
    finally:
        unregister(new)


def test_a_target_has_one_rule():
    with pytest.raises(ValueError, match="already has the rule `relu`"):
        register(find(torch.relu))
    with pytest.raises(ValueError, match="names no torch operation"):
        rule(name="none", fidelity=EXACT, samples=one_of_each_shape)(lambda input: input)


def test_rules_can_be_overridden_for_one_call():
    doubled = Rule(
        "doubled",
        lambda input: hs.Moments(input.mean, 2 * input.var),
        (torch.relu,),
        EXACT,
        one_of_each_shape,
    )
    out = hs.propagate(torch.relu, torch.ones(2), 0.1, rules={torch.relu: doubled})
    torch.testing.assert_close(out.var, torch.full((2,), 0.2))


def test_every_file_is_short():
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in PACKAGE.rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 300
    }
    assert long == {}
