"""The file: whole, safe whatever names it holds, and without any address to load from."""

import base64
import hashlib
import io
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from report_data import HOSTILE, gaussian_data

from howsure import Prediction, report
from howsure.report.cases import as_images, data_uri
from howsure.report.values import Report


class Elements(HTMLParser):
    """What a browser would see: tags with attributes, and texts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, name):
        return sum(tag == name for tag, _ in self.tags)


@pytest.fixture(scope="module")
def regression_page(regression):
    return report.to_html(regression)


def test_names_are_text_and_nothing_else(regression_page, hostile):
    page = report.to_html(hostile)
    seen = Elements(page)
    assert seen.count("script") == Elements(regression_page).count("script") == 1
    assert "<script>document" not in page
    assert all("on" not in {key[:2] for key in attrs} for _, attrs in seen.tags)
    assert any(HOSTILE in text for text in seen.texts)


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_the_page_loads_nothing(kind, request):
    page = report.to_html(request.getfixturevalue(kind))
    for tag, attrs in Elements(page).tags:
        for name in ("src", "href", "data", "action", "srcset", "poster"):
            assert attrs.get(name, "data:").startswith("data:"), (tag, attrs)
    addresses = set(re.findall(r"https?://[^\s\"')]+", page))
    assert not addresses
    assert "@import" not in page and not re.search(r"url\((?!#)", page)


def test_the_policy_names_the_script(regression_page):
    script = re.search(r"<script>(.*?)</script>", regression_page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in regression_page
    assert "default-src 'none'" in regression_page


def test_it_is_readable_without_a_script(regression, regression_page):
    for metric in regression.view.metrics:
        assert metric.text in regression_page
    assert "Every metric at every noise level" in regression_page
    assert "<noscript>" in regression_page and '<html lang="en">' in regression_page


def test_writing_is_whole_or_not_at_all(tmp_path, regression, regression_page):
    path = report.write(tmp_path / "new" / "report.html", regression)
    assert path.read_text(encoding="utf-8") == regression_page
    broken = replace(regression, title="\ud800")  # cannot be written as UTF-8
    with pytest.raises(UnicodeEncodeError):
        report.write(path, broken)
    assert path.read_text(encoding="utf-8") == regression_page
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(TypeError, match=r"give what `howsure.report.build` returned"):
        report.write(path, "a page")


def test_the_report_is_plain_values(classes):
    def check(value):
        if isinstance(value, tuple | list):
            return all(map(check, value))
        if isinstance(value, dict):
            return all(map(check, value.values()))
        if hasattr(value, "__dataclass_fields__"):
            return all(check(getattr(value, f.name)) for f in fields(value))
        return isinstance(value, str | int | float | type(None))

    assert isinstance(classes, Report) and check(classes)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_hold_their_pixels(channels):
    image_module = pytest.importorskip("PIL.Image")
    image = torch.rand(channels, 7, 5, generator=torch.Generator().manual_seed(0))
    uri = data_uri(image)
    raw = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    decoded = image_module.open(io.BytesIO(raw))
    assert decoded.size == (5 * 13, 7 * 13)
    small = (
        torch.from_numpy(np.array(decoded.convert("RGB").resize((5, 7), 0)))
        .reshape(7, 5, -1)
        .long()
    )
    assert torch.equal(small, (image.movedim(0, -1) * 255).round().long().expand(-1, -1, 3))


def test_what_is_no_picture():
    assert as_images(torch.zeros(4, 2, 8, 8)) is None
    assert as_images(torch.zeros(4, 8)) is None
    assert as_images("images") is None
    normalized = as_images(torch.tensor([-2.0, 2.0]).reshape(2, 1, 1, 1).expand(2, 1, 2, 2))
    assert normalized is not None and float(normalized.max()) == 1 and float(normalized.min()) == 0


def test_no_predictions():
    prediction, target = gaussian_data(10)
    with pytest.raises(ValueError, match="give at least one"):
        report.from_predictions({}, target)
    infinite = Prediction(prediction.mean, prediction.data_var / 0, prediction.model_var)
    with pytest.raises(ValueError, match="predicted variance contains NaN or infinity"):
        report.from_predictions({1.0: infinite}, target)


def test_outputs_without_a_dimension_of_their_own():
    prediction, target = gaussian_data(40)
    flat = Prediction(*(getattr(prediction, n)[:, 0] for n in ("mean", "data_var", "model_var")))
    found = report.from_predictions({1.0: flat}, target[:, 0])
    same = report.from_predictions({1.0: prediction}, target)
    assert report.to_html(found) == report.to_html(same)
