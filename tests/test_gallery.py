"""Every script of the gallery runs, says what it made, and leaves nothing behind."""

import runpy
import sys
from pathlib import Path

import pytest

import howsure.moments.rules  # noqa: F401  (fills the table)
from howsure.moments.rule import registered

pixels = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
PAGE = (ROOT / "docs" / "gallery.md").read_text()
# The robots of the gallery need longer, and the control loop runs in real time; so do networks that
# are trained on images.
ROBOTS = {"control_loop": ["--steps", "100"], "fusion": []}
IMAGES = {"depth": ["--quick"], "detection": ["--quick"], "segmentation": ["--quick"]}
LONGER = {**ROBOTS, **IMAGES}
EXPECTED = 10


def run(script: Path, *arguments: str) -> None:
    """Runs the script in this process as if from the command line."""
    before = sys.argv
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


def assert_picture(path: Path) -> None:
    """The file is a picture with something on it."""
    with pixels.open(path) as image:
        gray = image.convert("L").resize((200, 100))
    counts = gray.histogram()
    blank = max(counts) / sum(counts)
    assert image.width >= 400 and image.height >= 250
    assert sum(count > 0 for count in counts) > 30, "hardly any shades"
    assert blank < 0.97, "nearly empty"


def test_scripts_are_found():
    assert len(SCRIPTS) >= EXPECTED


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_draws_a_picture(script, tmp_path, capsys):
    rules = registered()
    picture = tmp_path / "folder" / "picture.png"
    run(script, "--quick", "--out", str(picture))
    assert_picture(picture)
    assert str(picture) in capsys.readouterr().out
    assert registered() == rules


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER)
def test_longer_script_draws_a_picture(name, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    run(ROOT / "examples" / f"{name}.py", *LONGER[name], "--out", str(picture))
    assert_picture(picture)


@pytest.mark.parametrize("name", [*(script.stem for script in SCRIPTS), *LONGER])
def test_page_shows_the_picture_and_the_command(name):
    picture = f"img/gallery_{name}.png"
    folder = "examples" if name in LONGER else "examples/gallery"
    assert f"]({picture})" in PAGE
    assert f"python {folder}/{name}.py" in PAGE
    assert_picture(ROOT / "docs" / picture)


def test_an_empty_picture_is_refused(tmp_path):
    pixels.new("RGB", (600, 400), "white").save(tmp_path / "white.png")
    with pytest.raises(AssertionError, match="hardly any shades"):
        assert_picture(tmp_path / "white.png")
