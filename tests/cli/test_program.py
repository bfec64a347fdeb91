"""The program around the commands: help, exit codes, JSON, messages, start-up."""

import json
import shlex
import subprocess
import sys
import textwrap

import pytest

from howsure.cli import main
from howsure.cli.program import NAMES, build_parser, command_of


def test_help_lists_all_commands(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name}" in printed for name in NAMES)


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_with_examples_and_the_common_options(command, capsys):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"howsure {command}" in printed.partition("examples:")[2]
    assert all(option in printed for option in ("--json", "--quiet", "--debug"))


def test_every_example_in_the_help_parses():
    parser, count = build_parser(), 0
    for name in NAMES:
        for line in command_of(name).examples.replace("\\\n", " ").splitlines():
            if line.strip().startswith("howsure"):
                words = shlex.split(line.split(" > ")[0], comments=True)[1:]
                assert parser.parse_args(words).command == name
                count += 1
    assert count > 20


def test_without_or_with_an_unknown_command_the_exit_code_is_2(capsys):
    assert main([]) == 2
    assert "Name a command" in capsys.readouterr().err
    assert main(["fly"]) == 2
    assert "no command 'fly'" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("howsure ")


def test_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "howsure", "reproduce", "flying"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "invalid choice: 'flying'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["predict"], ["predict", "m:f", "d.npz", "--batch", "0"], ["fit", "m:f", "d.npz", "--nois"]],
)
def test_wrong_options_are_told_in_a_sentence(arguments, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "see `howsure" in printed.err and printed.out == ""


def test_json_tells_errors_too(howsure):
    ran = howsure("predict", "--json")
    assert ran.code == 2 and ran.data["exit_code"] == 2 and "arguments are required" in ran.err
    assert ran.data["error"] == ran.err.strip()


def test_json_is_all_there_is_on_stdout(project, howsure):
    ran = howsure("check", "project_model:prints", "data.npz", "--json")
    assert ran.data["ok"] is True and "talks" in ran.err


def test_json_has_no_nan(project, howsure):
    ran = howsure("fit", "project_model:build", "data.npz", "--method", "constant", "--json")
    assert ran.code == 0 and "NaN" not in ran.out
    assert json.loads(ran.out)["fit"]["rate"] is None


def test_warnings_are_notes_that_quiet_leaves_out(project, howsure):
    command = ["fit", "project_model:build", "data.npz", "--model-part", "dropout"]
    command += ["--rates", "0.5,0.6", "--noise-std", 9]
    loud, quiet = howsure(*command, "--json"), howsure(*command, "--json", "--quiet")
    assert loud.data["warnings"] and loud.err.startswith("Note: ")
    assert quiet.data["warnings"] and quiet.err == ""


FIT_A_RATE = ["fit", "project_model:build", "data.npz", "--noise-std", "0.1"]
FIT_A_RATE += ["--model-part", "dropout"]


def test_quiet_prints_nothing_when_the_result_is_in_a_file(project, howsure):
    assert howsure(*FIT_A_RATE, "--out", "s.json", "--quiet").out == ""
    assert "NLL" in howsure(*FIT_A_RATE, "--quiet").out


def test_what_is_not_the_users_fault_has_exit_code_1(project, howsure, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("out of\n cheese")

    monkeypatch.setattr("howsure.fit.dropout.check_outputs", fail)
    ran = howsure(*FIT_A_RATE)
    assert ran.code == 1
    assert "RuntimeError: out of cheese" in ran.err and "--debug" in ran.err
    with pytest.raises(RuntimeError, match="cheese"):
        main([*FIT_A_RATE, "--debug"])


@pytest.mark.parametrize(("command", "words"), [("predict", "resumes"), ("fit", "half-written")])
def test_interruptions_are_told(project, howsure, monkeypatch, command, words):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("howsure.cli.building.case_of", interrupt)
    ran = howsure(command, "project_model:build", "data.npz")
    assert ran.code == 1 and words in ran.err


def test_a_closed_pipe_is_no_error_message():
    command = [sys.executable, "-m", "howsure", "rules"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_parser_help_and_completion_do_not_need_torch():
    """The commands are loaded beside a howsure that is empty, as far as `__init__` goes."""
    code = """
        import sys, types
        import importlib.util
        found = importlib.util.find_spec("howsure")
        empty = types.ModuleType("howsure")
        empty.__path__ = list(found.submodule_search_locations)
        empty.__version__ = "any"
        sys.modules["howsure"] = empty
        from howsure.cli import main
        assert main(["--help"]) == main(["predict", "--help"]) == main(["completion", "bash"]) == 0
        print(sorted({"torch", "numpy", "matplotlib"} & set(sys.modules)), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.stderr.strip() == "[]", done.stderr


@pytest.mark.parametrize("tqdm", [True, False])
def test_progress_is_shown_with_and_without_tqdm(monkeypatch, capsys, tqdm):
    from howsure.progress import progress

    if not tqdm:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list(progress(range(3), True, "predict")) == [0, 1, 2]
    printed = capsys.readouterr()
    assert "predict" in printed.err and printed.out == ""
    assert list(progress(range(3), False, "predict")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
