"""`howsure.export`: one call from a wrapper to a checked file that runs without howsure.

A prediction becomes a function from tensors to named tensors, its trace a program for any batch
size where possible, and the program a file: ONNX, torch's `.pt2`, or machine code of AOTInductor.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

import howsure
from howsure.arrays import key_text, paths
from howsure.calibrate.calibrators import CalibratedPrediction
from howsure.deploy.agreement import allowed, differences
from howsure.deploy.tracing import BatchSizeMattersError, for_any_batch, traced
from howsure.errors import ExportError, NoRuleError, import_extra, warn
from howsure.estimators.sampling import MOST_SAMPLES
from howsure.files import write_atomically
from howsure.methods import gradients
from howsure.methods.method import METHODS, Method, Uses
from howsure.methods.propagation import SAMPLES
from howsure.multipliers.sites import draw_uniforms
from howsure.noise import encode, to_config
from howsure.prediction import Prediction
from howsure.private_torch import load_package, pytree, write_package
from howsure.setup import Setup
from howsure.trees import TensorTree, batch_size

if TYPE_CHECKING:
    from howsure.uncertain import Uncertain

FIELDS = ("mean", "data_var", "model_var")
MASKS = ("fixed", "inputs")
# The name of a file's description.
KEY = "howsure"
# Runs a file as a user would.
Run = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        inputs: The names of its inputs, in order.
        outputs: The names of its outputs, in order.
        batch: The batch size that it needs; `None` for any.
        difference: Largest difference to eager found when the file was run, relative to the
            largest value of each output. A variance that is nothing but rounding counts at most
            as what is allowed.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int | None
    difference: float


def export(
    uncertain: Uncertain,
    example: object,
    path: str | Path,
    *,
    any_batch: bool | None = None,
    compiled: bool = False,
    masks: str = "fixed",
    units: str | None = None,
) -> Exported:
    """Writes a program that returns mean, `data_var` and `model_var` without howsure.

    The file is run before the function returns, and compared with the wrapper itself. Settings
    are fixed in it: noise, rates, `residual_var`, and calibrators that scale variances.
    `howsure.deploy.export.read_metadata` reads them back.

    Args:
        uncertain: The wrapper, tuned and calibrated.
        example: An input as the model takes it.
        path: A file that ends in `.onnx` (for onnxruntime) or `.pt2` (for `torch.export.load`).
        any_batch: Whether the program takes any batch size; `None`: if possible.
        compiled: For `.pt2`: machine code of AOTInductor, for this kind of processor, to be loaded
            by `torch._inductor.aoti_load_package` or from C++.
        masks: For methods that sample by dropout: "fixed" are drawn once, from the seed, so that
            the same input gives the same output; "inputs" are given in every call, one for each
            site: uniform numbers between 0 and 1, or 0 and 1 for dropped and kept.
        units: The units of the output, stored in the file.

    Raises:
        ExportError: If the method or the model cannot be exported, or the file gives other numbers.

    Examples:
        >>> model = nn.Linear(3, 1).eval()
        >>> sure = hs.Uncertain(model, noise=0.01, method="gradients")
        >>> hs.export(sure, torch.zeros(2, 3), "model.pt2").outputs
        ('mean', 'data_var', 'model_var')
    """
    path = Path(path)
    if masks not in MASKS:
        raise ExportError(f"`masks` must be one of {MASKS}, not {masks!r}.")
    if path.suffix not in (".onnx", ".pt2"):
        raise ExportError(f"`{path.name}` must end in `.onnx` or `.pt2`.")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxruntime", "onnxscript"):
            _import(package)
        if compiled:
            raise ExportError("`compiled=True` goes with a `.pt2` file.")
        write, load = _write_onnx, _load_onnx
    else:
        write, load = (_write_package, _load_package) if compiled else (_write_pt2, _load_pt2)
    if not hasattr(uncertain, "setup"):
        kind = type(uncertain).__name__
        raise ExportError(f"Wrap the {kind} first: `export(Uncertain(model, noise), x, path)`.")
    flat = FlatPrediction(uncertain, example, masks_as_inputs=masks == "inputs")
    with torch.no_grad():
        program, batch = make_program(flat, any_batch)
    about = describe(flat, batch, units)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        write(trial, program, about)
        difference = compare(flat, batch, load(trial), path)
        if Uses.POINTS in flat.method.uses:
            _warn_of_samples(flat)
        write_atomically(path, lambda file: file.write(trial.read_bytes()))
    names = tuple(port.name for port in flat.inputs)
    return Exported(path, names, tuple(flat.outputs), batch, difference)


# A prediction as a function from tensors to named tensors.


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a program: a tensor of the model's input, or the mask of a dropout site.

    A mask has a number for every unit, and a unit is kept where its number is at least the site's
    rate. So uniform numbers between 0 and 1 give dropout at the tuned rate, and in a mask of zeros
    and ones, 0 drops a unit and 1 keeps it. The program itself divides by 1 - rate.

    Attributes:
        name: Its name in the program, unique: two sites can differ in dots and underscores alone.
        example: A tensor like it; of a mask the seed's, of shape (samples, [batch,] *units).
        batch_axis: The axis with a row for each sample; `None` if there is none.
        place: Its number among the leaves of the model's input, or among the setup's sites.
        site: Of a mask: the layer, as `Uncertain.describe` lists it.
        rate: Of a mask: the rate below which a number means that the unit is dropped.
    """

    name: str
    example: Tensor
    batch_axis: int | None
    place: int
    site: str | None = None
    rate: float = 0.0

    def rows(self, count: int) -> Tensor:
        """The example with `count` rows, which repeat as often as needed."""
        if self.batch_axis is None or self.example.shape[self.batch_axis] == count:
            return self.example
        index = torch.arange(count) % self.example.shape[self.batch_axis]
        return self.example.index_select(self.batch_axis, index)

    def stand_in(self, size: int) -> Tensor:
        """A tensor of no memory with another batch size: tracing looks at shapes only."""
        if self.batch_axis is None:
            return self.example
        shape = list(self.example.shape)
        shape[self.batch_axis] = size
        return self.example.new_empty(1).expand(shape)

    def describe(self) -> dict[str, object]:
        """What a file says about it."""
        dtype = str(self.example.dtype).removeprefix("torch.")
        about = {"name": self.name, "shape": list(self.example.shape), "dtype": dtype}
        if self.site is None:
            return about
        return {**about, "site": self.site, "rate": self.rate, "batch_axis": self.batch_axis}


class FlatPrediction:
    """A wrapper's prediction for inputs shaped like an example, from tensors to tensors.

    Attributes:
        uncertain: The wrapper, with the setup that its method takes for the example.
        method: Its method; never "auto".
        inputs: The example's tensors, then the masks.
        outputs: The names of mean, data and model variance of every output.
    """

    def __init__(self, uncertain: Uncertain, example: object, *, masks_as_inputs: bool) -> None:
        self._leaves, self._spec = pytree.tree_flatten(example)
        places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        if not places:
            raise ExportError("`example` has no tensor; give an input as the model takes it.")
        with torch.no_grad():  # Finds what a trace needs, too.
            first = uncertain(*(example if type(example) is tuple else (example,)))
        if isinstance(first, CalibratedPrediction):
            raise ExportError(
                f"`{type(first.calibrator).__name__}` gives intervals, and a file holds only mean "
                "and variances; drop it from `calibrators`, or use `VarianceScale`."
            )
        self.method, setup = _choose(uncertain, example)
        self.uncertain = copy.copy(uncertain)
        self.uncertain.setup, self.uncertain.method = setup, self.method
        keys = [key for key, leaf in pytree.tree_leaves_with_path(example) if torch.is_tensor(leaf)]
        tensors = [self._leaves[place].detach() for place in places]
        self.batch = len(tensors[0]) if tensors[0].dim() else 0
        self.inputs: list[Input] = []
        for place, tensor, key in zip(places, tensors, keys, strict=True):
            word = "_".join(map(key_text, key))
            name = word if word and not word[0].isdigit() else f"x{word}"
            axis = 0 if tensor.dim() and len(tensor) == self.batch else None
            self.inputs.append(Input(name, tensor, axis, place))
        if masks_as_inputs:
            self.inputs += _masks(setup, self.method, example)
        self.outputs = [
            f"{field}{path}" for field in FIELDS for path in paths(getattr(first, field))
        ]

    @property
    def has_masks(self) -> bool:
        """Whether the masks are inputs."""
        return self.inputs[-1].site is not None

    def input_of(self, tensors: Sequence[Tensor]) -> Any:
        """The model's input made of the first tensors; everything else in it is fixed."""
        leaves = list(self._leaves)
        for port, tensor in zip(self.inputs, tensors, strict=True):
            if port.site is None:
                leaves[port.place] = tensor
        return pytree.tree_unflatten(leaves, self._spec)

    def eager(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs as the wrapper itself gives them, with samples of no row."""
        with gradients.without_samples():
            return self.with_samples(tensors)

    @torch.no_grad()
    def with_samples(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same with samples of the rows whose gradients cannot be relied on."""
        if self.has_masks:
            return self.predict(self.uncertain.setup, tensors)
        x = self.input_of(tensors)
        return _flatten(self.uncertain(*(x if type(x) is tuple else (x,))))

    def predict(self, setup: Setup, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same by a given setup, without what a file does not hold."""
        x = self.input_of(tensors)
        if self.has_masks:
            # What stands for a site without dropout is not looked at.
            uniforms = [tensors[-1]] * len(setup.sites(x))
            for port, tensor in zip(self.inputs, tensors, strict=True):
                if port.site is not None:
                    uniforms[port.place] = tensor
            setup = setup.replace(uniforms=tuple(uniforms))
        result = replace(self.method(setup, x), details=None, error=None)
        for calibrator in self.uncertain.calibrators:
            result = calibrator(result)
        return _flatten(result)


def _flatten(prediction: Prediction) -> list[Tensor]:
    """Means, data variances and model variances of all outputs."""
    return [leaf for field in FIELDS for leaf in TensorTree(getattr(prediction, field)).tensors]


def _choose(uncertain: Uncertain, example: object) -> tuple[Method, Setup]:
    """The method and the setup for it; an error if a file cannot do the same."""
    method, setup, _ = uncertain.choice(example)
    if Uses.NOISE in method.uses and uncertain.method == "auto" and not setup.is_fitted:
        warn(
            f'"auto" chooses "{method}" here, which draws new noise in every call; the file uses '
            f'"{gradients.METHOD}" instead, which estimates the same variance.'
        )
        method, setup = gradients.METHOD, setup.replace(samples=None)
    if Uses.NOISE in method.uses:
        raise ExportError(
            f'The method "{method}" draws new noise in every call, which a file cannot do; use '
            '`method="gradients"` for few outputs, `"adf"` or `"sampled_adf"` for many.'
        )
    if Uses.POINTS not in method.uses:
        return method, setup
    if setup.tolerance is not None:
        raise ExportError(
            "With a `tolerance`, the number of points depends on the input; in a file it is "
            "fixed. Set it with `samples=` and `tolerance=None`."
        )
    reason = gradients.why_no_gradients(setup, example)
    if reason is not None:
        raise ExportError(
            f'"gradients" cannot be used for this model, and sampling cannot be exported: {reason}.'
            ' `method="adf"` or `"sampled_adf"` may do.'
        )
    return method, setup


def _masks(setup: Setup, method: Method, x: object) -> list[Input]:
    """One input for every site that drops anything."""
    if Uses.MASKS not in method.uses:
        names = [method.name for method in METHODS.values() if Uses.MASKS in method.uses]
        raise ExportError(
            f'The method "{method}" has no masks that a program could take as inputs; those with '
            f"masks are {names}."
        )
    sites = setup.sites(x)
    rates = setup.rates(sites)
    batch = None if setup.shared_masks else batch_size(x)
    axis = None if batch is None else 1
    drawn = draw_uniforms(sites, setup.samples or SAMPLES, setup.seed, batch=batch)
    masks = [
        Input(f"mask{i}_" + re.sub(r"\W", "_", site.name), uniforms, axis, i, site.name, rate)
        for i, (site, rate, uniforms) in enumerate(zip(sites, rates, drawn, strict=True))
        if rate > 0
    ]
    if not masks:
        raise ExportError("All dropout rates are 0, so there are no masks to take as inputs.")
    return masks


# The program.


def make_program(
    flat: FlatPrediction, any_batch: bool | None
) -> tuple[torch.export.ExportedProgram, int | None]:
    """The prediction as torch's own program, and the batch size that it needs; `None` for any.

    `any_batch=None` takes the example's batch size where it must be fixed.
    """
    if any_batch is not False:
        try:
            return _program_for_any_batch(flat), None
        except (BatchSizeMattersError, ExportError) as error:
            if any_batch:
                raise ExportError(
                    f"The program depends on the batch size: {error} Use `any_batch=False` for a "
                    f"program that takes batches of {flat.batch}."
                ) from error
    examples = tuple(port.example for port in flat.inputs)
    graph = _name_ports(_trace(flat, examples), flat)
    return torch.export.export(graph, examples, strict=False), flat.batch


def _program_for_any_batch(flat: FlatPrediction) -> torch.export.ExportedProgram:
    def trace(size: int) -> GraphModule:
        return _trace(flat, [port.stand_in(size) for port in flat.inputs])

    graph = _name_ports(for_any_batch(trace, 0), flat)
    examples = tuple(port.rows(3) for port in flat.inputs)  # A batch of 1 would be taken as fixed.
    batch = torch.export.Dim("batch")
    axes = [port.batch_axis for port in flat.inputs]
    shapes = tuple(None if axis is None else {axis: batch} for axis in axes)
    try:
        return torch.export.export(graph, examples, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # Its errors have no common class.
        raise BatchSizeMattersError(f"{error}".partition("\n")[0]) from error


def _trace(flat: FlatPrediction, tensors: Sequence[Tensor]) -> GraphModule:
    setup = flat.uncertain.setup
    # All samples, and all rows, at once: a file has one graph, not pieces.
    setup = setup.replace(chunk=setup.chunk or setup.samples or MOST_SAMPLES)
    try:
        return traced(lambda *inputs: flat.predict(setup, inputs), tensors)
    except (NoRuleError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ExportError(
            f'The method "{flat.method}" of this model cannot be traced to a graph, most often '
            f"because the control flow of the model depends on values: {error}"
        ) from error


def _name_ports(graph: GraphModule, flat: FlatPrediction) -> GraphModule:
    """The graph with named inputs and a dict of named outputs."""
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for node, port in zip(placeholders, flat.inputs, strict=True):
        node.target = port.name
    nodes[-1].args = (dict(zip(flat.outputs, nodes[-1].args[0], strict=True)),)
    graph.recompile()
    return graph


# The file's description of itself: noise, rates, units, method, as JSON.


def describe(flat: FlatPrediction, batch: int | None, units: str | None) -> dict[str, Any]:
    """How the variances were made, as plain data."""
    setup = flat.uncertain.setup
    x = flat.input_of([port.example for port in flat.inputs])
    sites = setup.sites(x) if setup.rate is not None else ()
    rates = setup.rates(sites) if sites else ()
    try:
        noise: object = to_config(setup.noise)
    except TypeError:  # A function, which is no plain data, by its name.
        noise = repr(setup.noise)
    plain = ("samples", "seed", "prediction", "task", "tolerance")
    return {
        "howsure": howsure.__version__,
        "torch": torch.__version__,
        "method": flat.method.name,
        "noise": noise,
        "noise_units": "variance, in the square of the input's units",
        "rates": {site.name: rate for site, rate in zip(sites, rates, strict=True)},
        "residual_var": encode(setup.residual_var),
        **{name: getattr(setup, name) for name in plain},
        "calibrators": [encode(calibrator.state()) for calibrator in flat.uncertain.calibrators],
        "units": units,
        "batch": batch,
        "inputs": [port.describe() for port in flat.inputs if port.site is None],
        "masks": [port.describe() for port in flat.inputs if port.site is not None],
        "outputs": flat.outputs,
    }


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What `howsure.export` wrote into a file about how it was made."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file `{path}`.")
    if path.suffix == ".onnx":
        model = _import("onnx").load(str(path), load_external_data=False)
        texts = [item.value for item in model.metadata_props if item.key == KEY]
    else:  # A `.pt2` file is an archive; what torch calls extra files are entries of it.
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/{KEY}.json")]
            texts = [archive.read(name).decode() for name in names]
    if not texts or not texts[0]:
        raise ExportError(f"`{path}` was not written by `howsure.export`.")
    return json.loads(texts[0])


# The three kinds of files: how each is written, and run as a user would.


def _write_pt2(path: Path, program: torch.export.ExportedProgram, about: dict[str, Any]) -> None:
    # Where the disk is full, torch's own writer of files ends the whole process.
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Some constants are views of larger tensors. The file is run and compared once written.
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(program, buffer, extra_files={f"{KEY}.json": json.dumps(about)})
    path.write_bytes(buffer.getbuffer())


def _load_pt2(path: Path) -> Run:
    module = torch.export.load(path).module()
    return lambda tensors: list(module(*tensors).values())


def _write_package(
    path: Path, program: torch.export.ExportedProgram, about: dict[str, Any]
) -> None:
    write_package(program, str(path))
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/extra/{KEY}.json", json.dumps(about))


def _load_package(path: Path) -> Run:
    package = load_package(str(path))
    return lambda tensors: list(package(*tensors).values())


def _write_onnx(path: Path, program: torch.export.ExportedProgram, about: dict[str, Any]) -> None:
    names = [item["name"] for item in (*about["inputs"], *about["masks"])]
    outputs = about["outputs"]
    with _quiet():
        try:
            converted = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=names, output_names=outputs
            )
        except Exception as error:
            # What the exporter has to say, without the colors of a terminal and its advice.
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            lines = text.rpartition("## Exception summary")[2].strip().splitlines()
            raise ExportError(
                "ONNX has no form for a part of this program; a `.pt2` file has: "
                f"{lines[0] if lines else type(error).__name__}"
            ) from error
    assert converted is not None
    # Inner values with other names than the outputs: torch calls an average `mean` as well.
    graph: Any = converted.model.graph
    finals = {id(value) for value in graph.outputs}
    for value in (value for node in graph for value in node.outputs):
        if value.name in outputs and id(value) not in finals:
            value.name = f"{value.name}_inside"
    model = converted.model_proto
    model.metadata_props.add(key=KEY, value=json.dumps(about))
    path.write_bytes(model.SerializeToString())


def _load_onnx(path: Path) -> Run:
    session = _import("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        return list(map(torch.from_numpy, session.run(None, dict(zip(names, arrays, strict=True)))))

    return run


def _import(package: str) -> Any:
    return import_extra(package, f"ONNX, unlike a `.pt2` file, needs `{package}`", "export")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's reports on missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# The written file against the wrapper itself: the same numbers, or an error.


def compare(flat: FlatPrediction, batch: int | None, run: Run, path: Path) -> float:
    """The largest relative difference to eager; an error if it is too large."""
    count, worst = flat.batch or 1, 0.0
    for size in [count] if batch is not None else [count, 1, 2 * count + 1]:
        tensors = [port.rows(size) for port in flat.inputs]
        expected = flat.eager(tensors)
        relative = differences(expected, run(tensors))
        for name, output, difference in zip(flat.outputs, expected, relative, strict=True):
            if not difference <= allowed(output):
                raise ExportError(
                    f"`{path.name}` gives another `{name}` than the wrapper for {size} inputs, by "
                    f"{difference:.1e} of its largest value; it was not written. Please report "
                    "it, and try `any_batch=False`."
                )
        worst = max(worst, *relative)
    return worst


def _warn_of_samples(flat: FlatPrediction) -> None:
    """A warning where the wrapper samples rows of the example, which a file cannot do."""
    tensors = [port.example for port in flat.inputs]
    expected = flat.with_samples(tensors)
    relative = differences(expected, flat.eager(tensors))
    if any(r > allowed(output) for r, output in zip(relative, expected, strict=True)):
        warn(
            "The wrapper samples rows of the example whose gradients cannot be relied on; a file "
            f"cannot, and differs there by up to {max(relative):.0%} of the largest variance."
        )
