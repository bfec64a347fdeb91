"""What all tests share: one thread, a fixed seed, and `--strict-skips`."""

import pytest
import torch

from strict_skips import (  # noqa: F401  (hooks of pytest)
    pytest_addoption,
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)


@pytest.fixture(autouse=True)
def one_thread_and_fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
