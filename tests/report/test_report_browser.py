"""The page in a real browser: quiet, alone, movable, sortable, and as wide as the window."""

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import torch
from headless_browser import Browser, Page, find_browser
from report_data import HOSTILE

import howsure as hs
from howsure import report

EXECUTABLE = find_browser()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="Chromium is not installed")


def report_of_a_wide_network():
    """A posterior over 512 multipliers, which would be megabytes as text."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 1)).eval()
    x = torch.randn(200, 4)
    y = model(x).detach() + 0.1 * torch.randn(200, 1)
    sure = hs.Uncertain(model, 0.01, "gradients")
    sure.fit(x[:100], y[:100], show_progress=False)
    return report.build(sure, [(x[100:], y[100:])], show_progress=False)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(EXECUTABLE, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory, regression, classes, hostile):
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "regression": regression,
        "classification": classes,
        "hostile": hostile,
        "wide": report_of_a_wide_network(),
    }
    return {
        name: report.write(folder / f"{name}.html", content).as_uri()
        for name, content in pages.items()
    }


@pytest.fixture
def open_page(browser, addresses):
    opened = []

    def make(name, **options):
        opened.append(Page(browser, addresses[name], **options))
        return opened[-1]

    yield make
    for page in opened:
        assert page.complaints() == []
        page.close()


SHOWN = ".view:not([hidden])"


def path_of(page, key):
    """All that is drawn in a chart of the view that is shown."""
    return page.evaluate(f"document.querySelector('{SHOWN} .chart-{key} svg').innerHTML")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["regression", "classification", "hostile"])
def test_it_loads_alone_and_fits(open_page, addresses, name, width, dark):
    page = open_page(name, width=width, dark=dark)
    outside = [url for url in page.requests() if not url.startswith(("data:", addresses[name]))]
    assert outside == []
    # Not `innerWidth`: a phone widens that to what overflows.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    figures = "document.querySelectorAll('figure').length"
    assert page.evaluate(f"document.querySelectorAll('figure svg[viewBox]').length === {figures}")
    dark_page = (
        page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    )
    assert dark_page == dark


@pytest.mark.parametrize("name", ["regression", "classification", "wide"])
def test_it_is_small_and_a_few_screens_high(open_page, addresses, name):
    page = open_page(name, width=1280)
    assert page.evaluate("document.documentElement.scrollHeight") <= 12 * 800
    file = Path(unquote(urlparse(addresses[name]).path))
    assert file.stat().st_size < 1_000_000


def test_the_slider_moves_plots_numbers_and_words(open_page):
    page = open_page("regression")
    keys = ("reliability", "sweep")
    value = f"document.querySelector('{SHOWN} .metrics tbody td').textContent"
    words = f"document.querySelector('{SHOWN} .summary').textContent"
    seen = []
    page.evaluate("document.getElementById('level').focus()")
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight"):
        page.press(key, {"ArrowLeft": 37, "ArrowRight": 39}[key])
        name = page.evaluate("document.getElementById('level-name').textContent")
        said = page.evaluate("document.getElementById('level').getAttribute('aria-valuetext')")
        assert said == name
        seen.append((name, path_of(page, keys[0]), page.evaluate(value), page.evaluate(words)))
    assert [name for name, *_ in seen] == ["× 0.5", "× 1", "× 2"]
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 3
    assert "too sure" in seen[0][3] and "too unsure" in seen[2][3]


def test_the_slider_moves_the_sparsification(open_page):
    page = open_page("classification")
    before = path_of(page, "sparsification")
    page.evaluate("document.getElementById('level').focus()")
    page.press("ArrowLeft", 37)
    assert page.evaluate("document.getElementById('level-name').textContent") == "× 0.5"
    assert path_of(page, "sparsification") != before
    page.press("ArrowRight", 39)
    assert path_of(page, "sparsification") == before


def test_the_choice_of_output(open_page):
    page = open_page("hostile")
    options = "[...document.querySelectorAll('#output option')].map((o) => o.textContent)"
    assert page.evaluate(options) == ["all outputs", HOSTILE, "b"]
    before = path_of(page, "sparsification")
    page.evaluate(
        "output.value = '1', document.getElementById('output').dispatchEvent(new Event('input'))"
    )
    assert path_of(page, "sparsification") != before


def column(page, index):
    cells = f"#cases tbody td:nth-child({index + 1})"
    return page.evaluate(
        f"[...document.querySelectorAll('{cells}')].map((c) => Number(c.dataset.value))"
    )


def sort_state(page):
    return page.evaluate(
        "[...document.querySelectorAll('#cases th')].map((h) => h.getAttribute('aria-sort'))"
    )


def test_sorting_by_click_and_by_key(open_page):
    page = open_page("regression")
    assert set(sort_state(page)) == {"none"}
    page.evaluate("document.querySelectorAll('#cases th button')[4].click()")
    assert column(page, 4) == sorted(column(page, 4)) and len(set(column(page, 4))) > 100
    assert sort_state(page)[4] == "ascending" and sort_state(page).count("none") == 7
    page.press("Tab", 9)
    page.evaluate("document.querySelectorAll('#cases th button')[4].focus()")
    page.press("Enter", 13)
    assert column(page, 4) == sorted(column(page, 4), reverse=True)
    assert sort_state(page)[4] == "descending"
    page.evaluate("document.querySelectorAll('#cases th button')[0].click()")
    assert column(page, 0) == sorted(column(page, 0))
    assert sort_state(page)[4] == "none" and sort_state(page)[0] == "ascending"


def test_the_theme_can_be_chosen(open_page):
    page = open_page("regression", dark=True)
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    assert page.evaluate("document.getElementById('theme').textContent") == "Light"
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(color) == "rgb(255, 255, 255)" != dark
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(color) == dark


# Relative luminance and contrast as in the Web Content Accessibility Guidelines 2.
CONTRAST = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const texts = "p, td, th, dd, dt, b, span, figcaption, summary, h1, button, label";
  const worst = [...document.querySelectorAll(texts)]
    .filter((node) => node.textContent.trim())
    .map((node) => ratio(light(getComputedStyle(node).color), light(behind(node))));
  return Math.min(...worst);
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out(open_page, dark):
    assert open_page("classification", dark=dark).evaluate(CONTRAST) >= 4.5


def test_everything_that_can_be_used_has_a_name(open_page):
    page = open_page("regression")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input, img, [tabindex]')].filter((n) => !("
        "n.labels?.length || n.getAttribute('aria-label') || n.alt || n.textContent.trim())).length"
    )
    assert unnamed == 0


def test_it_prints(open_page):
    page = open_page("regression", dark=True)
    printed = page.pdf()
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
