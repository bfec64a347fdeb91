"""`--strict-skips`: hooks of pytest, apart from the conftest that imports torch."""

from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_name("allowed_skips.txt")
unexpected = {}  # reason -> number of tests


def pytest_addoption(parser):
    words = f"fail if a test is skipped for a reason that is not in {ALLOWED.name}"
    parser.addoption("--strict-skips", action="store_true", help=words)


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        lines = ALLOWED.read_text(encoding="utf-8").splitlines()
        if reason not in (line for line in lines if not line.startswith("#")):
            unexpected[reason] = unexpected.get(reason, 0) + 1


pytest_collectreport = pytest_runtest_logreport  # of a file that is skipped as a whole


def pytest_sessionfinish(session, exitstatus):
    if unexpected and exitstatus == 0 and session.config.getoption("--strict-skips"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if unexpected and config.getoption("--strict-skips"):
        terminalreporter.section("skipped, and not in tests/allowed_skips.txt")
        for reason, count in unexpected.items():
            terminalreporter.line(f"{count}: {reason}")
