"""Numbers in plain words: the readings say what the data were made to be."""

import re

import pytest
import torch
from report_data import class_data, gaussian_data, metric

from howsure import Prediction, report
from howsure.report import readings
from howsure.report.readings import short

pytestmark = pytest.mark.usefixtures("undrawn")


def words(text):
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("observed", "inputs", "expected"),
    [
        (0.91, 1000, "The 95 % interval covers 91 % of the targets: slightly too sure."),
        (0.80, 1000, "The 95 % interval covers 80 % of the targets: clearly too sure."),
        (0.30, 1000, "The 95 % interval covers 30 % of the targets: far too sure."),
        (0.0, 1000, "The 95 % interval covers 0 % of the targets: far too sure."),
        (0.999, 9000, "covers 99.9 % of the targets: clearly too unsure"),
        (1.0, 1000, "covers 100 % of the targets: somewhat too unsure"),
        (0.91, 50, "covers 91 % of the targets: as promised, as far as 50 inputs can tell."),
    ],
)
def test_coverage(observed, inputs, expected):
    assert expected in words(readings.coverage(observed, 0.95, inputs))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(0.2, "far too sure"), (0.65, "too sure"), (1.0, "as promised"), (2.0, "too unsure")],
)
def test_readings_follow_the_data(scale, expected):
    prediction, target = gaussian_data(2000, scale=scale)
    found = report.from_predictions({1.0: prediction}, target)
    assert expected in metric(found, "Coverage of the 95 %").reading
    assert found.view.headline[0] == metric(found, "Coverage of the 95 %").reading


def test_the_std_beside_the_error():
    assert "Errors are 4.00 times as large" in readings.spread(0.25, 1.0)
    assert "far too sure" in readings.spread(0.25, 1.0)
    assert "as large as the errors" in readings.spread(1.05, 1.0)
    assert "clearly too unsure" in readings.spread(1.5, 1.0)
    assert "is 0" in readings.spread(0.0, 1.0)
    assert "no error" in readings.spread(0.5, 0.0)


def test_the_limit_of_the_order_is_what_an_exact_std_reaches():
    prediction, target = gaussian_data(20000)
    found = report.from_predictions({1.0: prediction}, target)
    # The std is exactly right, so what is gained is what could be gained, up to chance.
    text = words(metric(found, "AUSE").reading)
    gained, possible = map(int, re.findall(r"(\d+) %", text))
    assert abs(gained - possible) <= 2


def test_shuffled_stds_are_found_out():
    prediction, target = gaussian_data(2000)
    shuffled = Prediction(
        prediction.mean, prediction.data_var.flip(0), prediction.model_var.flip(0)
    )
    found = report.from_predictions({1.0: shuffled}, target)
    assert "does not lower the error" in metric(found, "AUSE").reading
    assert "does not show" in metric(found, "Rank correlation").reading
    assert "Worse than one constant error bar" in metric(found, "NLL").reading


def test_sources():
    assert "75 % of the variance comes from the sensor, 25 % from" in words(readings.sources(0.75))
    assert "not included" in readings.sources(1.0) and "not included" in readings.sources(0.0)
    small = words(readings.sources(1e-5))
    assert "under 0.1 % of the variance comes from the sensor, over 99.9 % from" in small
    assert "not included" not in small


@pytest.mark.parametrize("data, model", [(1.0, 1e-20), (1e-20, 1.0)])
def test_a_small_share_is_included(data, model):
    ones = torch.ones(20, 1)
    prediction = Prediction(torch.rand(20, 1), data * ones, model * ones)
    found = report.from_predictions({1.0: prediction}, torch.rand(20, 1))
    assert "not included" not in metric(found, "Variance from the sensor").reading


def test_confidence_that_holds_and_one_that_does_not():
    prediction, target = class_data(4000)
    found = report.from_predictions({1.0: prediction}, target, task="classification")
    assert "as promised" in metric(found, "Mean confidence").reading
    sharpened = prediction.mean.square() / prediction.mean.square().sum(1, keepdim=True)
    boastful = Prediction(sharpened, prediction.data_var, prediction.model_var)
    found = report.from_predictions({1.0: boastful}, target, task="classification")
    assert "too sure" in metric(found, "Mean confidence").reading


def test_percent_keeps_digits_near_the_ends():
    shown = [words(readings.percent(p)) for p in (0, 0.0001, 0.004, 0.5, 0.95, 0.993, 0.9999, 1)]
    assert shown == [
        "0 %",
        "under 0.1 %",
        "0.4 %",
        "50 %",
        "95 %",
        "99.3 %",
        "over 99.9 %",
        "100 %",
    ]


def test_short_numbers():
    values = (0, 0.00123, 0.5, -3.14159, 123.4, 98765.0, 1e7, -2.5e-9)
    assert [short(v) for v in values] == [
        "0", "0.00123", "0.500", "−3.14", "123", "98765", "1.00e+07", "−2.50e−09",
    ]  # fmt: skip
