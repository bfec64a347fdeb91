"""Pages and versions say what the code says; `make lint` checks the order of imports."""

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import torch

import howsure as hs

PACKAGE = Path(hs.__file__).parent
ROOT = PACKAGE.parents[1]


def test_the_laboratory_uses_no_private_names():
    for path in (PACKAGE.parents[1] / "lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_")], path


def test_howsure_does_not_import_the_laboratory():
    assert not [path for path in PACKAGE.rglob("*.py") if "import howsure_lab" in path.read_text()]
    assert not [path for path in PACKAGE.rglob("*.py") if "from howsure_lab" in path.read_text()]


def private_modules(path):
    """Modules of torch with a private name that a file imports or reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "._" in alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from (
                name for alias in node.names if "._" in (name := f"{node.module}.{alias.name}")
            )
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
            is_module = isinstance(getattr(torch, node.attr, None), ModuleType)
            if is_module and node.attr.startswith("_") and not node.attr.startswith("__"):
                yield f"torch.{node.attr}"


def test_private_modules_of_torch_are_in_one_file():
    using = {path.name for path in PACKAGE.rglob("*.py") if list(private_modules(path))}
    assert using == {"private_torch.py"}


# Words that are names of methods, and mean something else in these files.
_OTHER_MEANINGS = {
    "adf": {"settings.py"},  # the old name of a prediction, which is refused
    "constant": {
        "prediction.py",
        "noise/sensors.py",
        "cli/commands.py",  # a kind of noise
        "moments/rules/structural.py",  # a way to pad
    },
    "linear": {
        "report/charts.py",  # a scale of an axis
        "moments/rules/resampling.py",  # a way to interpolate
        "moments/rules/linear.py",
        "operations.py",
        "robotics/messages.py",  # a field of a message
    },
}


def words_of(path):
    """The strings of a file that are neither docstrings nor annotations."""
    tree = ast.parse(path.read_text())
    notes = [getattr(node, "annotation", None) for node in ast.walk(tree)]
    left_out = {id(inner) for note in notes if note is not None for inner in ast.walk(note)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in left_out:
            yield node.value


def test_methods_are_known_by_name_in_their_own_room_alone():
    found = {
        (word, str(path.relative_to(PACKAGE)))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "methods"
        and path != PACKAGE / "cli" / "options.py"  # which refuses others without torch
        for word in words_of(path)
        if word in hs.methods.METHODS
    }
    meant = {(word, file) for word, files in _OTHER_MEANINGS.items() for file in files}
    assert found == meant


def test_the_type_of_a_method_lists_all_of_them():
    from howsure.methods import METHODS, MethodName

    assert set(get_args(MethodName)) == {"auto", *METHODS}


def test_the_workflow_runs_what_ci_runs_for_every_python():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    (pythons,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r'"(.*?)"', pythons) == classifiers
    called = re.findall(r"^(make .*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert re.findall(r"run: (make .*)$", workflow, re.MULTILINE) == called


def test_the_oldest_torch_is_the_one_that_the_package_asks_for():
    oldest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"torch=={oldest}.0 " in (ROOT / "Makefile").read_text()


def test_all_parts_have_one_version():
    files = ["pyproject.toml", "lab/pyproject.toml", "CITATION.cff"]
    found = {
        re.search(r'^version(?: = "|: )([\d.]+)', (ROOT / file).read_text(), re.MULTILINE)[1]
        for file in files
    }
    assert len(found) == 1
