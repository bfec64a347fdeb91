"""Draws docs/img/report_*.png and docs/img/demo_report.png, the pictures of reports.

    .venv/bin/python -m howsure demo --out out/demo
    .venv/bin/python docs/make_report_pictures.py --demo out/demo/report.html

It needs Chromium and Pillow, and takes about a minute. The classifier is the network of
`howsure_lab.digits`; the report of the demonstration comes from a run of its own.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from PIL import Image

import howsure as hs
from howsure import report
from howsure.files import write_atomically
from howsure_lab.digits.data import held_out_digits, sense
from howsure_lab.digits.model import load_trained

PICTURES = Path(__file__).parent / "img"
NOISE_STD = 0.15
COLORS = 128  # of the palette: a page of text and lines needs no more


def main() -> int:
    """Draws the pictures; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="the report that `howsure demo` wrote")
    demo = parser.parse_args().demo
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report.write(page, digits_report())
        draw(page, "report_desktop", 1100, 1480)
        page.write_text(page.read_text().replace("<html", '<html data-theme="dark"', 1))
        draw(page, "report_phone", 390, 1000)
    if demo is not None:
        draw(demo, "demo_report", 1100, 1480)
    return 0


def digits_report() -> report.Report:
    """The report on a classifier of digits that are read by a noisy sensor."""
    images, labels = held_out_digits(100)
    seen = sense(images, NOISE_STD, torch.Generator().manual_seed(0))
    noise = hs.noise.std(NOISE_STD)
    sure = hs.Uncertain(load_trained(), noise, "gradients", rate=0.02, task="classification")
    options = report.Options(title="Digits through a noisy sensor")
    return report.build(sure, [(seen, labels)], options=options, show_progress=False)


def draw(page: Path, name: str, width: int, height: int) -> None:
    """Writes the top of a page, as Chromium shows it, with a small palette."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        raise FileNotFoundError("Neither `chromium` nor `google-chrome` was found; install one.")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        size, out = f"--window-size={width},{height}", f"--screenshot={shot}"
        command = [browser, *options, size, out, page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        buffer = io.BytesIO()
        Image.open(shot).convert("RGB").quantize(COLORS).save(buffer, "PNG", optimize=True)
    write_atomically(PICTURES / f"{name}.png", lambda file: file.write(buffer.getvalue()))


if __name__ == "__main__":
    raise SystemExit(main())
