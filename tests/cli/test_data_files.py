"""Data: every format gives the same rows, in pieces too; what is wrong is named."""

import pickle

import numpy as np
import pytest
import torch
from small_project import NET

from howsure.data.reading import Choice, Preparation, Source, open_data


@pytest.mark.parametrize("file", ["data.npz", "packed.npz", "x.npy", "data.csv"])
def test_rows_are_the_same_in_every_format(project, file):
    source: Source = open_data(file, Choice()).source
    x = torch.from_numpy(np.load("x.npy")).float()
    assert len(source) == 20
    for start, stop in ((0, 20), (3, 7), (19, 20)):
        assert torch.equal(source.rows(start, stop), x[start:stop])


@pytest.mark.parametrize("file", ["data.npz", "packed.npz", "x.npy", "data.csv"])
def test_sources_travel_to_other_processes(project, file):
    source = open_data(file, Choice()).source
    again = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 1000
    assert torch.equal(again.rows(2, 5), source.rows(2, 5))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "<i4", ">u2", "|b1", "|u1"])
def test_number_types_and_orders(project, dtype):
    x = (10 * np.random.default_rng(0).random((6, 4))).astype(dtype)
    for array in (x, np.asfortranarray(x)):
        np.save("a.npy", array)
        np.savez("a.npz", a=array)
        np.savez_compressed("b.npz", a=array)
        for file in ("a.npy", "a.npz", "b.npz"):
            rows = open_data(file, Choice()).source.rows(1, 5)
            np.testing.assert_array_equal(rows.numpy(), x[1:5].astype(rows.numpy().dtype))
            assert rows.dtype.is_floating_point == (x.dtype.kind == "f")


def test_preparation(project):
    x = np.random.default_rng(0).integers(0, 255, (5, 3, 2, 2), dtype=np.uint8)
    np.save("images.npy", x)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    rows = open_data("images.npy", Choice(preparation=Preparation(255.0, mean, std))).source.rows(
        0, 5
    )
    expected = (x / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="one for each channel"):
        open_data("images.npy", Choice(preparation=Preparation(mean=(1, 2)))).source.rows(0, 1)


def test_columns_and_their_order(project):
    x = np.load("x.npy")
    both = Choice(inputs={"left": ("c", "a"), "right": ("b",)})
    rows = open_data("data.csv", both).source.rows(0, 20)
    np.testing.assert_allclose(rows["left"].numpy(), x[:, [2, 0]], rtol=1e-6)
    np.testing.assert_allclose(rows["right"].numpy(), x[:, [1]], rtol=1e-6)


def test_targets_from_keys_columns_and_files(project):
    y = torch.from_numpy(np.load("y.npy"))
    for file, target in (("data.npz", None), ("data.csv", "y"), ("x.npy", "y.npy")):
        found = open_data(file, Choice(target=target))
        torch.testing.assert_close(found.target(), y)
    assert open_data("data.csv", Choice(target="a,b")).source.rows(0, 2).shape == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.npz"], "There is no file or folder `missing.npz`"),
        (["weights.pt"], "howsure cannot read `weights.pt`"),
        (["data.npz", "--inputs", "z"], "`data.npz` has no `z`; it has `x`, `y`"),
        (["data.csv", "--inputs", "a,speed"], "`data.csv` has no `speed`; it has `a`, `b`"),
        (["data.csv", "--target", "angle"], "`data.csv` has no `angle`"),
        (["data.csv", "--inputs", "a,b,c", "--inputs", "d=y"], "names of the model's arguments"),
        (["data.npz", "--inputs", "x,y"], "names several arrays"),
        (["data.npz", "--inputs", "x="], "must be a list of names"),
        (["x.npy", "--inputs", "x"], "leave out `--inputs`"),
        (["data.csv", "--inputs", "a,b"], "does not run on inputs of shape (1, 2)"),
    ],
)
def test_wrong_names_are_told(project, refused, arguments, words):
    refused("predict", NET, *arguments, words=words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.npy"], "`x.npy` has no `y`; say with `--target`"),
        (["x.npy", "--target", "no.npy"], "There is no file `no.npy`"),
        (["data.npz", "--target", "short.npy"], "20 rows and 3 targets"),
        (["data.npz", "--target", "hole.npy"], "The target of row 4 is NaN"),
        (["data.npz", "--target", "wide.npy", "--model-part", "dropout"], "The targets have shape"),
    ],
)
def test_wrong_targets_are_told(project, refused, arguments, words):
    np.save("short.npy", np.ones(3))
    np.save("wide.npy", np.ones((20, 2)))
    np.save("hole.npy", np.where(np.arange(20) == 4, np.nan, 1.0))
    refused("fit", NET, *arguments, "--noise-std", "0.1", words=words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "`bad.csv` cannot be read as CSV: Empty CSV file"),
        ("1,2,3\n4,5,6\n", "must name the columns"),
        ("a,b,a\n1,2,3\n", "two columns of the same name"),
        ("a,b,c\n", "`bad.csv` has no rows"),
        ("a,b,c\n1,2,3\n1,2\n", "Expected 3 columns, got 2: 1,2"),
        (
            "a,b,c\n1,2,3\n4,five,6\n",
            "`bad.csv` cannot be read as CSV: In CSV column #1: Row #3:",
        ),
        ("a,b,c\n1,,3\n", "Row #2: CSV conversion error to double: invalid value ''"),
        ("a,b,c\n1,nan,3\n", "Row 0 of `bad.csv` contains NaN"),
        ('a,b,c\n"1,2,3', "Expected 3 columns, got 1"),
        (f"a,b,c\n{'1' * 200_000},2,3\n", "Row 0 of `bad.csv` contains NaN or infinity"),
    ],
)
def test_wrong_tables_are_told(project, refused, text, words):
    (project / "bad.csv").write_text(text)
    refused("predict", NET, "bad.csv", words=words)


def test_a_table_in_another_encoding_is_told(project, refused):
    (project / "bad.csv").write_bytes("a,b,größe\n1,2,3\n".encode("latin-1"))
    refused("predict", NET, "bad.csv", words="are not UTF-8")


def test_tables_of_spreadsheets_are_read(project):
    (project / "sheet.csv").write_bytes(b'\xef\xbb\xbf"a", b\r\n"1.5",2\r\n\r\n3, 4e0\r\n')
    rows = open_data("sheet.csv", Choice(inputs={"": ("b", "a")})).source.rows(0, 2)
    assert rows.tolist() == [[2.0, 1.5], [4.0, 3.0]]


def test_nan_empty_and_ragged_arrays_are_told(project, refused):
    x = np.load("x.npy")
    x[13, 2] = np.nan
    np.savez("hole.npz", x=x)
    refused(
        "predict",
        NET,
        "hole.npz",
        "--rate",
        "0.1",
        words="Row 13 of `x` in `hole.npz` contains NaN",
    )
    np.save("none.npy", np.ones((0, 3)))
    refused("predict", NET, "none.npy", words="`none.npy` has no rows")
    np.save("one.npy", np.float64(3))
    refused("predict", NET, "one.npy", words="is a single number")
    np.savez("ragged.npz", a=np.ones((3, 2)), b=np.ones((4, 3)))
    command = ("predict", "project_model:TwoSensors", "ragged.npz", "--inputs", "left=a")
    refused(*command, "--inputs", "right=b", words="differ in their number of rows")
    np.savez("nothing.npz")
    refused("predict", NET, "nothing.npz", words="holds the arrays (none)")
