"""The commands: for each its options, its examples, what it does, and how the help says so.

What needs torch is imported inside the functions, so that help and completion come at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure.cli import options as o
from howsure.cli.options import Option, option
from howsure.cli.result import DONE, FAILED, Result, as_json
from howsure.errors import import_extra

if TYPE_CHECKING:
    from torch import Tensor

    from howsure.noise import CameraFit, Identified, Noise
    from howsure.prediction import Budget

Namespace = argparse.Namespace


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        help: One line.
        description: The help's first paragraphs.
        examples: Command lines.
        options: What it takes.
        run: What it does.
    """

    help: str
    description: str
    examples: str
    options: tuple[Option, ...]
    run: Callable[[Namespace], Result]


COMMANDS: dict[str, Command] = {}


def command(
    *options: Option, examples: str
) -> Callable[[Callable[[Namespace], Result]], Callable[[Namespace], Result]]:
    """Makes a function a command of its name; its docstring is the description."""

    def register(run: Callable[[Namespace], Result]) -> Callable[[Namespace], Result]:
        description = cleandoc(run.__doc__ or "")
        line = description.partition("\n")[0].rstrip(".")
        line = line[0].lower() + line[1:]
        COMMANDS[run.__name__] = Command(line, description, examples, options, run)
        return run

    return register


@command(
    option("folder", type=Path, help="a new or empty folder"),
    examples="""
  howsure init first
  cd first && cat README.md
""",
)
def init(arguments: Namespace) -> Result:
    """Writes an example project that runs: a small model, its data, and the commands to try."""
    from howsure.cli.starter import write_project

    files = write_project(arguments.folder)
    listed = "\n".join(f"  {path}" for path in files)
    text = f"{listed}\n\nNext:\n  cd {arguments.folder}\n  python make_data.py\n  cat README.md"
    return Result(text, {"folder": arguments.folder, "files": files}, in_file=True)


@command(
    o.MODEL,
    o.DATA_OR_SHAPE,
    o.NOISE,
    examples="""
  howsure check model:build --weights weights.safetensors --shape 3,32,32
  howsure check net.pt2 images.npz --trust
  howsure check model:build data.npz --inputs image=camera --inputs motion=imu \\
      --noise-std image=0.01
""",
)
def check(arguments: Namespace) -> Result:
    """Lists the operations of a model, the rule for each and its accuracy, and what is missing.

    The exit code is 1 if an operation has no rule.
    """
    from howsure.auditing.check import check
    from howsure.cli.building import example_of, model_of, noise_of

    model = model_of(arguments)
    x = example_of(arguments, model)
    result = check(model.module, x, noise_var=noise_of(arguments))
    data = {
        "ok": result.ok,
        "operations": [asdict(row) for row in result.rows],
        "advice": list(result.advice),
    }
    return Result(str(result).rstrip(), data, DONE if result.ok else FAILED)


@command(
    o.DATA,
    o.out([".json"], "the noise, a `.json` file for `--noise`"),
    option(
        "--kind",
        choices=("constant", "correlated", "camera", "image"),
        default="constant",
        help="constant: one variance; correlated: also what elements have in common; camera: gain "
        "and read noise, from frames; image: a guess from the first row alone (%(default)s)",
    ),
    option(
        "--per",
        choices=("all", "channel", "element"),
        default="all",
        help="one variance for everything, each channel, or each element (%(default)s)",
    ),
    option("--drift", action="store_true", help="ignore a slow drift"),
    option(
        "--saturation",
        type=o.limits,
        metavar="LOW,HIGH",
        help="readings at these limits are left out",
    ),
    option(
        "--black-level", type=float, default=0.0, metavar="B", help="camera: reading in the dark"
    ),
    examples="""
  howsure noise frames.npz --scale 255 --out noise.json
  howsure noise frames/ --kind camera --saturation 0,255 --out noise.json
  howsure noise imu.csv --per element --drift
  howsure noise photo.npy --kind image
""",
)
def noise(arguments: Namespace) -> Result:
    """Identifies a sensor's noise from its own readings, with standard errors.

    DATA holds repeated readings of something that does not move, one per row: frames of a static
    scene, or an inertial sensor at rest. The noise is in the readings' units, or, with `--scale`
    and `--normalize-*`, in those that the model sees.
    """
    from howsure.cli.building import number_or_list, write_noise
    from howsure.noise import Identified, to_config

    identified = _identify(_readings(arguments), arguments)
    noise: Noise = identified.noise
    if arguments.kind == "correlated" and isinstance(identified, Identified):
        noise = identified.correlated
    text = identified.in_words()
    scale, mean, std = arguments.scale, arguments.normalize_mean, arguments.normalize_std
    if scale is not None:
        noise = noise.through_normalize(0, scale)
    if mean or std:
        noise = noise.through_normalize(
            number_or_list(mean or (0.0,)), number_or_list(std or (1.0,))
        )
    if scale is not None or mean or std:
        text += "\nThe saved noise is in the units that the model sees."
    if arguments.out is not None:
        write_noise(arguments.out, noise)
        text += f"\nNoise: {arguments.out}"
    data = {"out": arguments.out, **identified.numbers(), "noise": to_config(noise)}
    return Result(text, data, in_file=arguments.out is not None)


def _readings(arguments: Namespace) -> Tensor:
    """All rows, in the file's own units and float64."""
    import torch

    from howsure.cli.building import choice_of
    from howsure.data.reading import Preparation, open_data

    if arguments.image_size is not None:
        raise ValueError("Resizing averages the noise away; leave out `--image-size`.")
    # Images are divided by 255 by default; the noise is in gray levels.
    preparation = Preparation(scale=1.0, dtype=torch.float64)
    source = open_data(arguments.data, choice_of(arguments, preparation)).source
    rows = source.rows(0, len(source))
    if not isinstance(rows, torch.Tensor):
        raise ValueError("Identify the noise of one input at a time: `--inputs NAME`.")
    return rows


def _identify(readings: Tensor, arguments: Namespace) -> Identified | CameraFit:
    """The noise by the requested procedure."""
    from howsure import noise as noises

    options = {"per": arguments.per, "saturation": arguments.saturation}
    if arguments.kind == "image":
        return noises.identify_from_image(readings[0], **options)
    options["drift"] = arguments.drift
    if arguments.kind == "camera":
        return noises.fit_poisson_gaussian(readings, **options, black_level=arguments.black_level)
    return noises.identify_from_repeats(readings, **options)


_TRAIN_BATCH = 64


@command(
    o.MODEL,
    o.DATA,
    o.out([".json", ".pt"], "the settings, a `.json` or `.pt` file"),
    o.batch(),
    o.group(
        "the model's own part",
        option(
            "--model-part",
            choices=("auto", "posterior", "temperature", "dropout", "none"),
            default="auto",
            help=(
                "a posterior over multipliers; for classes, a temperature that grows with the "
                "distance; the paper's dropout; or none (%(default)s)"
            ),
        ),
        option(
            "--train-inputs",
            metavar="DATA",
            help="inputs like those of training, in the format of DATA; targets are not needed",
        ),
        option(
            "--stress",
            choices=("images", "tables"),
            help="corruptions that do not change the target; the default for images",
        ),
        option("--rates", type=o.rates, metavar="P,P,...", help="dropout: rates to try (21)"),
        option(
            "--search-samples",
            type=o.count,
            metavar="T",
            help="dropout: Monte Carlo samples, or points of gradients, per rate",
        ),
    ),
    o.CLEAN,
    o.NOISE,
    o.METHOD,
    examples="""
  howsure fit model:build held_out.npz --weights weights.pt --noise-std 0.05 \\
      --train-inputs frames.npy --out settings.pt
  howsure fit model:build held_out.npz --weights weights.pt --noise-std 0.05 --out settings.json
  howsure fit net.pt2 held_out.csv --trust --target angle --noise-std 0.05 --clean \\
      --out settings.json
  howsure fit model:build digits/ --target folders --task classification --stress images \\
      --train-inputs more_digits/ --out settings.pt
  howsure fit model:build digits/ --target folders --task classification --gray-levels 4 \\
      --method mc_dropout --out settings.json
""",
)
def fit(arguments: Namespace) -> Result:
    """Fits the model (epistemic) uncertainty on held-out data, by likelihood.

    A posterior over multipliers from unlabeled training inputs; for classes, a temperature that
    grows with the distance from them; or the dropout rate of the paper.

    The data must be held out from training and carry the noise of deployment; if it is clean, say
    so with `--clean`, and the noise is added.
    """
    from howsure.cli.building import case_of, shows_progress, write_settings

    case = case_of(arguments)
    options = {
        "train_inputs": _train_inputs(arguments),
        "stress": arguments.stress,
        "rates": arguments.rates,
        "samples": arguments.search_samples,
        "inputs": "clean" if arguments.clean else "noisy",
        "show_progress": shows_progress(arguments),
    }
    options = {name: value for name, value in options.items() if value is not None}
    model = None if arguments.model_part == "none" else arguments.model_part
    result = case.sure.fit(case.pairs(), model=model, **options)
    text = str(result)
    if arguments.out is not None:
        write_settings(arguments.out, case.sure, result)
        text += f"\nSettings: {arguments.out}"
    data = {"out": arguments.out, "method": case.sure.method, "fit": result.to_dict()}
    return Result(text, data, in_file=arguments.out is not None)


def _train_inputs(arguments: Namespace) -> Iterator[tuple[object]] | None:
    """Batches of unlabeled inputs, prepared as the held-out ones."""
    if arguments.train_inputs is None:
        return None
    from howsure.cli.building import batches_of, data_of, model_of

    unlabeled = {**vars(arguments), "data": arguments.train_inputs, "target": None}
    source = data_of(Namespace(**unlabeled), model_of(arguments)).source
    return ((x,) for x in batches_of(source, _TRAIN_BATCH))


@command(
    o.MODEL,
    o.DATA,
    o.out([".npz", ".csv", ".parquet"], "a file `.npz`, `.csv` or `.parquet`", "predictions.npz"),
    option("--interval", type=o.level, metavar="LEVEL", help="also `low` and `high` of this level"),
    o.batch(),
    option("--fresh", action="store_true", help="discard the results of an unfinished run"),
    option(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help=(
            "run on the Ray cluster at this address; without an address, start Ray on this machine"
        ),
    ),
    o.NOISE,
    o.METHOD,
    lambda parser: parser.set_defaults(resumes=True),
    examples="""
  howsure predict model:build data.npz --weights weights.pt --settings settings.json \\
      --out predictions.npz
  howsure predict net.pt2 photos/ --trust --image-size 32,32 --gray-levels 2 --out p.csv
  howsure predict model:build rows.parquet --inputs speed,torque --noise-std 0.1,0.3 \\
      --rate 0.05 --out p.parquet --ray
""",
)
def predict(arguments: Namespace) -> Result:
    """Writes predictions with their variances for every row of a data set, in bounded memory.

    It resumes when it is run again after an interruption. The file has the columns mean, data_var,
    model_var and std, and for classification more.
    """
    from howsure.cli.building import case_of, check_unsure, shows_progress
    from howsure.data.scoring import predict_to_file

    case = case_of(arguments)
    check_unsure(case.sure)
    summary = predict_to_file(
        case.sure,
        case.data.source,
        arguments.out,
        batch=case.batch,
        level=arguments.interval,
        fresh=arguments.fresh,
        engine="local" if arguments.ray is None else "ray",
        address=arguments.ray or None,
        show_progress=shows_progress(arguments),
    )
    data = asdict(summary)
    return Result(str(summary), {"out": data.pop("path"), **data}, in_file=True)


@command(
    o.MODEL,
    o.DATA,
    o.rows(256),
    option(
        "--heatmap",
        type=Path,
        metavar="FILE.npz",
        help="write the variance caused by each input element, for the first batch",
    ),
    o.batch(64),
    o.NOISE,
    o.SETTINGS,
    examples="""
  howsure budget model:build data.npz --weights weights.pt --settings settings.json
  howsure budget model:build data.npz --inputs image=camera --inputs motion=imu \\
      --noise-std image=0.01 --noise-std motion=0.1 --rows 16
  howsure budget net.pt2 images.npz --trust --noise-std 0.02 --heatmap pixels.npz
""",
)
def budget(arguments: Namespace) -> Result:
    """Shows where the variance comes from: each sensor and dropped layer, over rows and outputs."""
    import torch

    from howsure.cli.building import batches_of, case_of, check_unsure
    from howsure.methods import gradients
    from howsure.prediction import Budget

    case = case_of(arguments)
    check_unsure(case.sure)
    case.sure.method = gradients.METHOD
    rows = min(arguments.rows, len(case.data.source))
    if case.fixed:
        rows = max(rows - rows % case.batch, case.batch)
    budgets = []
    with torch.no_grad():
        for x in batches_of(case.data.source, case.batch, rows):
            prediction = case.sure(**x) if isinstance(x, dict) else case.sure(x)
            try:
                budgets.append(prediction.budget())
            except ValueError:
                raise ValueError(f"There is no budget: {prediction.notes[0]}") from None
    if arguments.heatmap is not None:
        _write_heatmap(arguments.heatmap, budgets[0])
    table = budgets[0] if len(budgets) == 1 else Budget.joined(budgets)
    names = ("source", "kind", "variance", "share")
    sources = [dict(zip(names, row, strict=True)) for row in table.table()]
    data = {"rows": rows, "total_var": float(table.total.mean()), "sources": sources}
    return Result(f"{table}\n\nAverage over {rows} rows and all outputs.", data)


def _write_heatmap(path: Path, budget: Budget) -> None:
    import numpy as np

    from howsure.files import write_atomically

    if path.suffix != ".npz":
        raise ValueError(f"`--heatmap {path}` must end in `.npz`.")
    budget.heatmap()  # an error in one sentence if there is none
    # `Any`, since an input may have the name of an option of numpy.
    elements: dict[str, Any] = {
        name: var.detach().cpu().numpy() for name, var in budget.elements.items()
    }
    write_atomically(path, lambda file: np.savez(file, **elements))


@command(
    o.MODEL,
    o.DATA,
    o.out([".json"], "all numbers, a `.json` file for `report --audit`"),
    option(
        "--time-limit", type=o.positive, default=60.0, metavar="S", help="seconds (%(default)s)"
    ),
    option(
        "--passes",
        type=o.count,
        metavar="N",
        help="make exactly this many passes, without a time limit",
    ),
    o.rows(64),
    option("--methods", metavar="A,B,...", help="methods to compare (all that apply)"),
    o.NOISE,
    o.SETTINGS,
    examples="""
  howsure audit model:build data.npz --weights weights.pt --noise-std 0.05 --rate 0.1
  howsure audit net.pt2 images.npz --trust --gray-levels 2 --methods adf,gradients --time-limit 20
  howsure audit model:build data.csv --target y --settings settings.json --passes 500 \\
      --out audit.json
""",
)
def audit(arguments: Namespace) -> Result:
    """Checks every method against Monte Carlo, on your own network and inputs."""
    from howsure.auditing import audit
    from howsure.cli.building import case_of, shows_progress
    from howsure.files import write_atomically

    case = case_of(arguments)
    setup = case.sure.setup
    rows = case.batch if case.fixed else arguments.rows
    result = audit(
        case.sure.model,
        case.rows(rows),
        setup.noise,
        setup.rate,
        methods=None if arguments.methods is None else arguments.methods.split(","),
        time_limit=arguments.time_limit,
        samples=arguments.passes,
        inputs=rows,
        placement=setup.placement,
        seed=setup.seed,
        show_progress=shows_progress(arguments),
        task=setup.task,
        output=setup.output,
        batch_dim=setup.batch_dim,
        residual_var=setup.residual_var,
    )
    data, text = result.to_dict(), str(result)
    if arguments.out is not None:
        content = as_json(data) + "\n"
        write_atomically(arguments.out, lambda file: file.write(content), text=True)
        text += f"\n\nNumbers: {arguments.out}"
    return Result(text, data, in_file=arguments.out is not None)


@command(
    o.MODEL,
    o.DATA,
    o.out([], "the file", "report.html"),
    option("--title", default="How sure is this network?", help="the heading"),
    option(
        "--noise-levels",
        type=o.numbers,
        default=(0.5, 1.0, 2.0),
        metavar="F,F,...",
        help="multiples of the sensor's std, for the slider",
    ),
    o.CLEAN,
    option("--names", default="", metavar="A,B,...", help="of outputs or classes"),
    option("--audit", metavar="FILE", help="what `howsure audit --out` wrote"),
    o.batch(),
    o.NOISE,
    o.METHOD,
    examples="""
  howsure report model:build held_out.npz --weights weights.pt --settings settings.json \\
      --out report.html
  howsure report model:build held_out.csv --target angle --settings settings.json \\
      --noise-levels 0.5,1,2 --title "Steering" --audit audit.json
""",
)
def report(arguments: Namespace) -> Result:
    """Writes a report on the model's uncertainty on held-out data: one HTML file."""
    from howsure import report
    from howsure.cli.building import case_of, check_unsure, read_json, shows_progress

    options = report.Options(
        title=arguments.title,
        noise_levels=arguments.noise_levels,
        inputs="clean" if arguments.clean else "noisy",
        names=arguments.names.split(",") if arguments.names else (),
    )
    audit = None
    if arguments.audit is not None:
        parts = ("rows", "layers", "verdict")
        audit = read_json(Path(arguments.audit), "howsure audit", parts)
    case = case_of(arguments)
    check_unsure(case.sure)
    page = report.build(
        case.sure,
        case.pairs(),
        options=options,
        audit=audit,
        show_progress=shows_progress(arguments),
    )
    path = report.write(arguments.out, page)
    headline = " ".join(page.view.headline)
    data = {"out": path, "headline": page.view.headline, "facts": dict(page.facts)}
    return Result(f"{headline}\n\nReport: {path}, to open in a browser", data, in_file=True)


@command(
    o.MODEL,
    o.DATA_OR_SHAPE,
    o.out([".onnx", ".pt2"], "a file `.onnx` or `.pt2`", required=True),
    option("--fixed-batch", action="store_true", help="fix the batch size to that of the example"),
    option("--compiled", action="store_true", help="`.pt2`: machine code for C++"),
    option(
        "--masks",
        choices=("fixed", "inputs"),
        default="fixed",
        help="dropout masks: drawn once, or given in every call (%(default)s)",
    ),
    option("--units", help="units of the output, stored in the file"),
    o.NOISE,
    o.METHOD,
    examples="""
  howsure export model:build --weights weights.pt --shape 6 --settings settings.json --out net.onnx
  howsure export model:build data.npz --noise-std 0.02 --method adf --units rad --out sure.pt2
""",
)
def export(arguments: Namespace) -> Result:
    """Writes prediction and variances as a program that runs without howsure: ONNX or torch's .pt2.

    The file is run and compared with the wrapper before it gets its name.
    """
    from howsure.cli.building import check_unsure, example_of, model_of, uncertain_of
    from howsure.deploy.export import export

    model = model_of(arguments)
    example = example_of(arguments, model)
    sure = uncertain_of(arguments, model)
    check_unsure(sure)
    program = export(
        sure,
        example,
        arguments.out,
        any_batch=False if arguments.fixed_batch else None,
        compiled=arguments.compiled,
        masks=arguments.masks,
        units=arguments.units,
    )
    batch = "any number of rows" if program.batch is None else f"{program.batch} rows"
    text = (
        f"{program.path}: {', '.join(program.inputs)} -> {', '.join(program.outputs)}, {batch} at "
        f"a time; run and compared, largest difference {program.difference:.1e}"
    )
    names = ("inputs", "outputs", "batch", "difference")
    data = {"out": program.path, **{name: getattr(program, name) for name in names}}
    return Result(text, data, in_file=True)


@command(
    option("pattern", nargs="?", default="", help="part of a rule's or operation's name"),
    option(
        "--fidelity",
        choices=("exact", "approximate", "linearized", "structural", "refused"),
        help="only rules of this kind",
    ),
    examples="""
  howsure rules
  howsure rules conv
  howsure rules --fidelity approximate
  howsure rules --json
""",
)
def rules(arguments: Namespace) -> Result:
    """Lists the rules: every operation that has one, and how accurate it is."""
    from howsure.moments import rules as _rules  # noqa: F401  (fills the table)
    from howsure.moments.rule import operation_name, registered

    table = [
        {
            "name": rule.name,
            "family": rule.kind.value,
            "fidelity": rule.fidelity.value,
            "error": rule.error,
            "summary": rule.summary,
            "operations": list(dict.fromkeys(operation_name(target) for target in rule.targets)),
        }
        for rule in sorted(registered(), key=lambda rule: rule.name)
    ]
    chosen = [
        row
        for row in table
        if arguments.fidelity in (None, row["fidelity"])
        and any(arguments.pattern.lower() in n.lower() for n in (row["name"], *row["operations"]))
    ]
    if not chosen:
        raise ValueError(f"No rule fits; `howsure rules` lists all {len(table)}.")
    width = max(len(row["name"]) for row in chosen)
    lines = []
    for row in chosen:
        error = f" ({row['error']:.0%})" if row["fidelity"] == "approximate" else ""
        lines.append(f"{row['name']:<{width}}  {row['fidelity'] + error:<18}  {row['summary']}")
    text = "\n".join([*lines, "", f"{len(chosen)} of {len(table)} rules"])
    return Result(text, {"rules": chosen})


@command(
    option("shell", choices=("bash", "zsh", "fish"), help="which shell"),
    examples="""
  eval "$(howsure completion bash)"                               # in ~/.bashrc
  howsure completion zsh > ~/.zfunc/_howsure                      # a folder of $fpath
  howsure completion fish > ~/.config/fish/completions/howsure.fish
""",
)
def completion(arguments: Namespace) -> Result:
    """Prints a script that completes commands and options in your shell."""
    from howsure.cli.program import build_parser, subparsers

    shtab = import_extra("shtab", "Completion needs `shtab`")
    parser = build_parser()
    for subparser in subparsers(parser).values():
        for action in subparser._actions:
            if action.choices is None and action.nargs != 0:  # may be a file
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    script = shtab.complete(parser, arguments.shell)
    return Result(script, {"shell": arguments.shell, "script": script})
