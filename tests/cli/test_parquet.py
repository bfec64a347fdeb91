"""Parquet tables in and out."""

import sys

import numpy as np
import pytest
import torch

from howsure.data.reading import Choice, open_data

NET = "project_model:build"


def test_without_pyarrow_the_remedy_is_told(project, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (project / "data.parquet").write_bytes(b"PAR1")
    refused("predict", NET, "data.parquet", words="pip install 'howsure[cli]'")


@pytest.fixture
def table(project):
    """Writes columns as `data.parquet`, in groups of 7 rows."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), "data.parquet", row_group_size=7)

    return write


def three_columns():
    return dict(zip("abc", np.load("x.npy").T, strict=True))


def test_rows_and_targets(table, howsure):
    table(y=np.arange(20), **three_columns())
    data = open_data("data.parquet", Choice())
    x = torch.from_numpy(np.load("x.npy")).float()
    assert torch.equal(data.source.rows(5, 17), x[5:17])
    assert data.target().flatten().tolist() == list(range(20))
    command = ("predict", NET, "data.parquet", "--noise-std", "0.1", "--method", "adf")
    assert howsure(*command, "--out", "a.parquet").code == 0
    assert howsure(*command, "--out", "a.npz").code == 0
    from pyarrow import parquet

    found = parquet.read_table("a.parquet")["data_var"].to_numpy()
    np.testing.assert_array_equal(found, np.load("a.npz")["data_var"][:, 0])


def test_wrong_columns_are_told(table, refused, project):
    command = ("predict", NET, "data.parquet", "--noise-std", "0.1")
    table(y=np.arange(20), **three_columns())
    refused(*command, "--inputs", "a,speed", words="has no `speed`")
    table(**three_columns(), name=["x"] * 20)
    refused(*command, words="`data.parquet` cannot be read: the column `name` holds `string`")
    holes = three_columns()
    holes["b"] = [None if i == 9 else 1.0 for i in range(20)]
    table(**holes)
    refused(*command, words="Row 9 of `data.parquet` contains NaN")
    refused(*command, "--inputs", "a,c", "--max-bytes", "319", words="`--max-bytes 320`")
    table(a=np.ones(0), b=np.ones(0), c=np.ones(0))
    refused(*command, words="has no rows")


@pytest.mark.parametrize("cut", [0, 4, 100])
def test_damaged_tables(table, refused, project, cut):
    table(**three_columns())
    (project / "data.parquet").write_bytes((project / "data.parquet").read_bytes()[:cut])
    words = "is not a Parquet file"
    refused("predict", NET, "data.parquet", "--noise-std", "0.1", words=words)
