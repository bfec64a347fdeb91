"""Imports go one way, the package costs torch alone, and a rule is one file."""

import ast
import importlib.util
import re
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.moments.rule import EXACT, Rule, find, register, registered, rule, unregister
from howsure.moments.samples import one_of_each_shape
from howsure.testing import check_rule

PACKAGE = Path(hs.__file__).parent
ROOT = PACKAGE.parents[1]

# Each layer imports only what is above it; within a layer, what stands before.
LAYERS = {
    "small things that everyone uses": ["errors", "values"],
    "the paper's propagation": ["moments"],
    "where uncertainty enters": ["noise", "masks", "setup"],
    "the variance from gradients": ["gradients"],
    "methods": ["prediction", "methods"],
    "judged and fitted on data": ["metrics", "fit", "calibrate"],
    "on the robot": ["deploy", "robotics"],
    "the front door": ["uncertain"],
    "tools around it": ["auditing", "data", "plots", "testing"],
    "what people read and type": ["report", "cli", "__main__"],
}
LEVEL = {name: level for level, names in enumerate(LAYERS.values()) for name in names}


MOST_ENTRIES = 24


def needed_parts(path):
    """The rooms that a file imports when it runs; types alone are no dependency."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
            parts = node.module.split(".")[1:]
            if id(node) not in for_types:
                yield from parts[:1] or [alias.name for alias in node.names]


def test_every_room_has_a_layer():
    rooms = {p.stem for p in PACKAGE.glob("*.py")} | {p.parent.name for p in PACKAGE.glob("*/*.py")}
    assert rooms - {"__init__"} == set(LEVEL)
    assert len(LAYERS) <= 10
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert len(entries) <= MOST_ENTRIES


@pytest.mark.parametrize("room", LEVEL)
def test_imports_go_one_way(room):
    folder = PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]
    order = list(LEVEL)
    for path in files:
        for other in needed_parts(path):
            assert other == room or order.index(other) < order.index(room), f"{path}: {other}"


def test_the_laboratory_uses_no_private_names():
    for path in (PACKAGE.parents[1] / "lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_")], path


def test_howsure_does_not_import_the_laboratory():
    assert not [path for path in PACKAGE.rglob("*.py") if "import howsure_lab" in path.read_text()]
    assert not [path for path in PACKAGE.rglob("*.py") if "from howsure_lab" in path.read_text()]


def test_the_public_names_are_those_that_dir_shows():
    assert dir(hs) == sorted(hs.__all__)
    assert all(getattr(hs, name) is not None for name in hs.__all__)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("score", "predict_to_file"),
        ("tune", "howsure.fit"),
        ("compat", "howsure_lab"),
        ("dropout", "masks"),
    ],
)
def test_names_of_the_first_version_say_the_new_one(old, new):
    with pytest.raises(AttributeError, match=new):
        getattr(hs, old)


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


@pytest.mark.parametrize("inputs", [24, 400])  # by samples as one batch, and by gradients
def test_a_first_prediction_does_not_import_the_compiler(inputs):
    result = run_python(f"""
        import sys, torch, howsure
        model = torch.nn.Sequential(torch.nn.Linear({inputs}, 8), torch.nn.Tanh()).eval()
        before, compilers = set(sys.modules), {{"torch._dynamo", "torch._inductor"}}
        p = howsure.Uncertain(model, 0.01)(torch.zeros(3, {inputs}))
        print(p.method, sorted(compilers & set(sys.modules) - before))
    """)
    method = "noise_sampling" if inputs == 24 else "gradients"
    assert result.stdout.strip() == f"{method} []", result.stdout + result.stderr


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
    from howsure.moments.families import elementwise

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


def lines_of_functions():
    """How many lines each function of the package has, by file and name."""
    return {
        (str(path.relative_to(PACKAGE)), node.name, node.lineno): node.end_lineno - node.lineno + 1
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_are_short():
    lines = lines_of_functions()
    ordered = sorted(lines.values())
    assert statistics.median(ordered) <= 8
    assert ordered[int(0.9 * len(ordered))] <= 25
    assert {name: count for name, count in lines.items() if count > 50} == {}


def lines_of_files():
    return {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }


def test_every_file_is_short():
    assert {file: count for file, count in lines_of_files().items() if count > 300} == {}


def test_few_files_are_tiny():
    """An idea is not split over files that are only read together."""
    tiny = [
        file
        for file, count in lines_of_files().items()
        if count < 40 and not file.endswith("__init__.py")
    ]
    assert len(tiny) < 15, tiny


# How many files one call enters after the first: fewer than 12 for the default, and fewer than 20
# for the paper's method.
MOST_FILES = {"gradients": 11, "sampled_adf": 19}
PAGE = ROOT / "docs" / "contributing.md"


def files_entered(call):
    """The files of the package in which a function runs during a call, in their order."""
    seen = {}

    def note(frame, event, arg):
        if event == "call":
            seen.setdefault(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [str(Path(f).relative_to(PACKAGE)) for f in seen if f.startswith(f"{PACKAGE}/")]


def way_of(method):
    """The files of one call, where nothing is left to be found out about the model."""
    options = {} if method == "gradients" else {"method": method, "rate": 0.1}
    # So many noisy numbers that `auto` takes gradients.
    model = nn.Sequential(nn.Linear(500, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
    x = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    sure = hs.Uncertain(model, hs.noise.std(0.1), **options)
    assert sure(x).method == method
    return files_entered(lambda: sure(x))


@pytest.mark.parametrize("method", MOST_FILES)
def test_the_way_of_a_call_is_short(method):
    found = way_of(method)
    assert "uncertain/wrapper.py" in found and f"methods/{method}.py" in found
    assert len(found) <= MOST_FILES[method], found


@pytest.mark.parametrize("method", MOST_FILES)
def test_the_page_lists_the_way_of_a_call(method):
    told = re.search(rf"^`{method}`: (.*?)\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert told, f"The page does not list the files of {method}."
    assert re.findall(r"`([^`]*\.py)`", told[1]) == way_of(method)


# Words that are names of methods, and mean something else in these files.
_OTHER_MEANINGS = {
    "adf": {"values/settings.py"},  # the old name of a prediction, which is refused
    "constant": {
        "values/budget.py",
        "calibrate/rescale.py",  # a kind of source
        "noise/constant.py",
        "cli/commands/noise.py",  # a kind of noise
        "moments/rules/exported.py",
        "moments/rules/shape.py",  # a way to pad
    },
    "linear": {
        "report/values.py",
        "report/axes.py",
        "report/charts.py",  # a scale of an axis
        "moments/rules/exported.py",
        "moments/rules/resize.py",  # a way to interpolate
        "moments/rules/linear.py",
        "masks/layers.py",  # a torch function
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
        for word in words_of(path)
        if word in hs.methods.METHODS
    }
    meant = {(word, file) for word, files in _OTHER_MEANINGS.items() for file in files}
    assert found == meant


def test_the_type_of_a_method_lists_all_of_them():
    from howsure.methods import METHODS, MethodName

    assert set(get_args(MethodName)) == {"auto", *METHODS}


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_house_is_current():
    script = load_script(ROOT / "docs" / "make_house.py")
    assert script.layers() == LAYERS
    assert script.PICTURE.read_text() == script.house(), "run `python docs/make_house.py`"


def test_the_picture_shows_the_imports_that_the_tests_see():
    script = load_script(ROOT / "docs" / "make_house.py")
    for room in LEVEL:
        folder = PACKAGE / room
        files = folder.rglob("*.py") if folder.is_dir() else [PACKAGE / f"{room}.py"]
        assert script.imports_of(room) == {o for f in files for o in needed_parts(f)} - {room}


def test_an_import_that_follows_from_others_is_not_drawn():
    direct = load_script(ROOT / "docs" / "make_house.py").direct
    imports = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a", "c"}}
    assert direct(imports) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c"}}


def test_the_page_has_the_map_of_rooms():
    table = PAGE.read_text().split("| floor | rooms |\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    told = {floor.strip(): re.findall(r"`(\w+)`(?=[ ,(]|$)", rooms) for floor, rooms in rows}
    assert [*told] == [*reversed(LAYERS)]
    for floor, rooms in told.items():
        assert [room for room in rooms if room in LEVEL] == LAYERS[floor]


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
