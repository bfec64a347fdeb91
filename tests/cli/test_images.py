"""Folders of images: sizes, colors, targets; and what is refused."""

import struct
import zlib

import numpy as np
import pytest
import torch

from howsure.data.reading import Choice, Preparation, open_data

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
NET = "project_model:Pixels"


@pytest.fixture
def photos(project):
    """Six images in two folders, and what they show as arrays in order of their names."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6, 8, 10, 3), dtype=np.uint8)
    for i, name in enumerate(("cat/a.png", "cat/b.png", "cat/c.png", "dog/a.png", "dog/b.bmp")):
        path = project / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i]).save(path)
    Image.fromarray(pixels[5]).save(project / "photos" / "dog" / "z.PPM")
    (project / "photos" / "notes.txt").write_text("no image")
    return pixels


def test_pixels_are_exactly_those_of_the_files(photos):
    rows = open_data("photos", Choice()).source.rows(1, 4)
    expected = torch.from_numpy(photos[1:4].transpose(0, 3, 1, 2).copy()).float() / 255
    assert torch.equal(rows, expected)


def test_gray_size_and_normalization(photos):
    choice = Choice(gray=True, image_size=(4, 5), preparation=Preparation(mean=(0.5,), std=(0.25,)))
    rows = open_data("photos", choice).source.rows(0, 6)
    small = Image.fromarray(photos[0]).convert("L").resize((5, 4), Image.Resampling.BILINEAR)
    expected = (np.asarray(small, dtype=np.float64) / 255 - 0.5) / 0.25
    assert rows.shape == (6, 1, 4, 5)
    np.testing.assert_allclose(rows[0, 0].numpy(), expected, atol=1e-6)


def test_targets_by_folder_and_by_file(photos, project):
    by_folder = open_data("photos", Choice(target="folders")).target()
    assert by_folder.tolist() == [0, 0, 0, 1, 1, 1]
    names = ["dog/z.PPM", "cat/a.png", "cat/b.png", "cat/c.png", "dog/a.png", "dog/b.bmp"]
    lines = "\n".join(f"{name},{i},{10 * i}" for i, name in enumerate(names))
    (project / "values.csv").write_text(f"file,u,v\n{lines}\n")
    by_file = open_data("photos", Choice(target="values.csv")).target()
    assert by_file.tolist() == [[i, 10 * i] for i in (1, 2, 3, 4, 5, 0)]


def test_commands_on_images(photos, howsure):
    ran = howsure("predict", NET, "photos", "--gray-levels", "2", "--method", "adf", "--json")
    assert ran.code == 0 and ran.data["rows"] == 6
    import project_model

    import howsure as hs

    net = hs.Uncertain(project_model.Pixels().eval(), noise=(2 / 255) ** 2, method="adf")
    x = torch.from_numpy(photos.transpose(0, 3, 1, 2).copy()).float() / 255
    with torch.no_grad():
        expected = net(x).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-4)
    ran = howsure(
        "fit", NET, "photos", "--target", "folders", "--task", "classification", "--rates",
        "0,0.1,0.2", "--gray-levels", "9", "--method", "mc_dropout", "--search-samples", "5",
    )  # fmt: skip
    assert ran.code == 0, ran.err


def test_noise_from_a_folder_of_frames_is_in_gray_levels(project, howsure, refused):
    generator = np.random.default_rng(0)
    (project / "frames").mkdir()
    frames = generator.normal(100, 3, (30, 8, 8)).round().astype(np.uint8)
    for i, frame in enumerate(frames):
        Image.fromarray(frame).save(project / "frames" / f"{i:02}.png")
    command = ("noise", "frames", "--gray")
    ran = howsure(*command, "--scale", "255", "--json")
    assert ran.data["var"] == pytest.approx(frames.var(0, ddof=1).mean())
    assert ran.data["noise"]["kind"] == "normalized"
    refused(*command, "--image-size", "4,4", words="Resizing averages the noise away")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photos", "--inputs", "x"], "leave out `--inputs`"),
        (["nothing"], "has no images"),
        (["mixed"], "bring all to one size with `--image-size"),
        (["broken"], "`broken/a.png` is not a readable image"),
        (["cut"], "`cut/a.png` is not a readable image"),
        (["deep"], "which 8 bits cannot hold"),
        (["photos", "--max-bytes", "239"], "`--max-bytes 240`"),
    ],
)
def test_wrong_images_are_told(photos, project, refused, arguments, words):
    for name in ("nothing", "mixed", "broken", "deep", "cut"):
        (project / name).mkdir()
    Image.fromarray(photos[0]).save(project / "mixed" / "a.png")
    Image.fromarray(photos[0, :5]).save(project / "mixed" / "b.png")
    (project / "broken" / "a.png").write_bytes(b"\x89PNG no")
    whole = (project / "photos" / "cat" / "a.png").read_bytes()
    (project / "cut" / "a.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(photos[0, :, :, 0].astype(np.uint16) * 200).save(project / "deep" / "a.png")
    refused("predict", NET, *arguments, "--noise-std", "0.1", words=words)


def declared_png(width, height):
    """A PNG of some bytes that says it is large."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"0")), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("side", [10_000, 30_000])
def test_huge_images_are_refused_by_what_they_declare(project, refused, side):
    (project / "huge").mkdir()
    (project / "huge" / "a.png").write_bytes(declared_png(side, side))
    refused("predict", NET, "huge", "--noise-std", "0.1", words="`huge/a.png`")
    with pytest.raises(ValueError, match=r"exceeds limit|--max-bytes"):
        open_data("huge", Choice(max_bytes=10**8)).source.rows(0, 1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "has its targets elsewhere"),
        ("values.csv", "no row for the image `cat/a.png`"),
        ("missing.csv", "There is no file `missing.csv`"),
        ("alone.csv", "no column of values"),
    ],
)
def test_wrong_targets_of_images_are_told(photos, project, refused, target, words):
    (project / "values.csv").write_text("file,u\ncat/b.png,1\n")
    (project / "alone.csv").write_text("file\ncat/b.png\n")
    chosen = () if target is None else ("--target", target)
    refused("fit", NET, "photos", *chosen, "--noise-std", "0.1", words=words)
