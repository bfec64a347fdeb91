"""The reports that several files look at, drawn once; nothing changes them."""

import pytest
from report_data import class_report, hostile_report, regression_report


@pytest.fixture(scope="session")
def regression():
    return regression_report()


@pytest.fixture(scope="session")
def classes():
    return class_report()


@pytest.fixture(scope="session")
def hostile():
    return hostile_report()
