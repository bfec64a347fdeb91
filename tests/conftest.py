"""What all tests share: one thread, a fixed seed, and `--strict-skips`."""

import gc

import pytest
import torch

from strict_skips import (  # noqa: F401  (hooks of pytest)
    pytest_addoption,
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing of what is imported and collected becomes garbage: the collector never looks at it.

    It would look through 750,000 objects again and again, which takes 4 of 12 seconds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # or Python would take its modules apart before what they still have to free


@pytest.fixture(autouse=True)
def one_thread_and_fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def undrawn(monkeypatch):
    """Charts of reports are made but not drawn, which takes most of their time.

    Gives their Axes by name; the name is the chart's `svg`.
    """
    from howsure.report import charts

    kept = {}

    def keep(ax):
        kept[str(len(kept))] = ax
        return str(len(kept) - 1)

    monkeypatch.setattr(charts, "_svg", keep)
    return kept


@pytest.fixture
def unsampled():
    """No row is sampled: predictions are what an exported file gives."""
    from howsure.methods.gradients import without_samples

    with without_samples():
        yield
