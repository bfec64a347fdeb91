"""Scoring a data set: the numbers, the files, and what is refused."""

import csv
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_job import BATCH, ROWS, SHARD, data, scored, sure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.data.identity import digest
from howsure.data.scoring import as_source, cut_shards, predict_to_file
from nets import TwoSensors, perceptron

QUIET = {"show_progress": False}


def loaded(path):
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def test_a_weight_that_is_one_number_of_a_larger_tensor(tmp_path):
    net = nn.Linear(1, 1)
    net.weight = nn.Parameter(torch.rand(3, 9)[:1, :1])
    net.bias = nn.Parameter(torch.rand(2, 9)[:1, 0])
    predict_to_file(
        hs.Uncertain(net.eval(), noise=0.1), torch.rand(4, 1), tmp_path / "s.npz", **QUIET
    )
    assert loaded(tmp_path / "s.npz")["mean"].shape == (4, 1)


@pytest.mark.parametrize(
    "method", ["sampled_adf", "gradients", "mc_dropout", "noise_sampling", "adf", "linear"]
)
def test_equals_the_prediction_of_a_loader_bit_for_bit(method, tmp_path):
    model = sure(method=method, samples=16)
    predict_to_file(model, data(), tmp_path / "s.npz", batch=7, shard_rows=21, **QUIET)
    expected = model.predict(DataLoader(data(), batch_size=7), show_progress=False)
    found = loaded(tmp_path / "s.npz")
    for name in ("mean", "std", "data_var", "model_var"):
        np.testing.assert_array_equal(found[name], getattr(expected, name).numpy(), strict=True)
    assert ("std_error" in found) == (method not in ("sampled_adf", "adf", "linear"))
    if "std_error" in found:
        np.testing.assert_array_equal(found["std_error"], expected.std_error.numpy(), strict=True)


@pytest.mark.parametrize("rows", [1, BATCH, SHARD, SHARD + 1, ROWS])
def test_shards_do_not_show_in_the_result(rows, tmp_path):
    for shard_rows in (None, 1, SHARD, 1000):
        summary = scored(tmp_path / f"{shard_rows}.npz", rows=rows, shard_rows=shard_rows)
        assert summary.rows == rows and summary.resumed_rows == 0
    contents = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == 1


def test_npz_is_plain_and_the_same_at_any_time(tmp_path):
    scored(tmp_path / "s.npz")
    with zipfile.ZipFile(tmp_path / "s.npz") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None
    assert oct((tmp_path / "s.npz").stat().st_mode & 0o777) == "0o644"


def test_csv_has_the_same_numbers(tmp_path):
    scored(tmp_path / "s.npz", level=0.9)
    scored(tmp_path / "s.csv", level=0.9)
    arrays = loaded(tmp_path / "s.npz")
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == ROWS
    for name, array in arrays.items():
        for column in range(2):
            read = np.array([row[f"{name}_{column}"] for row in rows], np.float32)
            np.testing.assert_array_equal(read, array[:, column])
    low, high = sure().predict(data().split(BATCH), show_progress=False).interval(0.9)
    np.testing.assert_array_equal(arrays["low"], low.numpy())
    np.testing.assert_array_equal(arrays["high"], high.numpy())


def test_parquet_has_the_same_numbers(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    scored(tmp_path / "s.npz")
    scored(tmp_path / "s.parquet")
    table = parquet.read_table(tmp_path / "s.parquet")
    for name, array in loaded(tmp_path / "s.npz").items():
        for column in range(2):
            read = table[f"{name}_{column}"].to_numpy()
            np.testing.assert_array_equal(read, array[:, column], strict=True)


def test_several_sensors_and_nested_outputs(tmp_path):
    model = TwoSensors().eval()
    inputs = {"image": torch.rand(10, 1, 8, 8), "motion": torch.rand(10, 6)}
    made = hs.Uncertain(model, {"image": 0.01, "motion": None}, "adf")
    predict_to_file(made, inputs, tmp_path / "s.npz", batch=4, shard_rows=4, **QUIET)
    found = loaded(tmp_path / "s.npz")
    assert {name for name in found if name.startswith("mean")} == {"mean.pose.0", "mean.pose.1"}
    direct = made(**{name: part[4:8] for name, part in inputs.items()})
    np.testing.assert_array_equal(found["mean.pose.0"][4:8], direct.mean["pose"][0].numpy())
    # By position, and as arrays.
    arrays = tuple(part.numpy() for part in inputs.values())
    by_position = hs.Uncertain(model, (0.01, None), "adf")
    predict_to_file(by_position, arrays, tmp_path / "t.npz", batch=4, shard_rows=4, **QUIET)
    assert (tmp_path / "s.npz").read_bytes() == (tmp_path / "t.npz").read_bytes()


def test_classes_have_entropies_and_one_column_needs_no_number(tmp_path):
    classes = sure(task="classification", method="sampled_adf")
    summary = predict_to_file(classes, data(), tmp_path / "s.npz", batch=BATCH, **QUIET)
    assert summary.columns["entropy"] == summary.columns["mutual_information"] == ()
    expected = classes.predict(data().split(BATCH), show_progress=False)
    np.testing.assert_array_equal(loaded(tmp_path / "s.npz")["entropy"], expected.entropy.numpy())
    predict_to_file(classes, data(), tmp_path / "s.csv", batch=BATCH, **QUIET)
    header = (tmp_path / "s.csv").read_text().splitlines()[0].split(",")
    assert header[:2] == ["mean_0", "mean_1"] and header[-2:] == ["entropy", "mutual_information"]


def test_dtypes(tmp_path):
    for dtype, expected in ((torch.float64, np.float64), (torch.bfloat16, np.float32)):
        made = hs.Uncertain(perceptron().to(dtype), 0.01, "adf")
        predict_to_file(made, data().to(dtype), tmp_path / "s.npz", batch=BATCH, **QUIET)
        assert loaded(tmp_path / "s.npz")["mean"].dtype == expected


def test_a_data_set_and_a_file_on_disk_are_sources(tmp_path):
    scored(tmp_path / "whole.npz")
    np.save(tmp_path / "x.npy", data().numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for source in (TensorDataset(data(), torch.zeros(ROWS)), mapped, data().numpy()):
        predict_to_file(sure(), source, tmp_path / "s.npz", batch=BATCH, shard_rows=SHARD, **QUIET)
        assert (tmp_path / "s.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_digests_see_every_number():
    def known(inputs):
        source = as_source(inputs)
        return digest(source.rows(0, len(source)))

    first = known(data())
    assert first == known(data().clone())
    changed = data()
    changed[37, 1] += 1e-6
    for other in (changed, data().double(), data()[1:], (data(),), {"x": data()}):
        assert known(other) != first


@pytest.mark.parametrize(
    ("source", "out", "options", "error", "words"),
    [
        (torch.zeros(0, 3), "s.npz", {}, ValueError, "no rows"),
        ((torch.zeros(3, 3), torch.zeros(2, 3)), "s.npz", {}, ValueError, "same number of rows"),
        (iter([1]), "s.npz", {}, TypeError, "can only be iterated"),
        (data(), "s.xlsx", {}, ValueError, r"must end in one of \['.npz'"),
        (data(), ".", {}, ValueError, "must end in one of"),
        (data(), "s.npz", {"batch": 0}, ValueError, "`batch` must be a whole number"),
        (data(), "s.npz", {"shard_rows": -1}, ValueError, "`shard_rows` must be"),
        (data(), "s.npz", {"engine": "spark"}, ValueError, "`engine` must be one of"),
        (data(), "s.npz", {"level": 2.0}, ValueError, "^`level` must be"),
        (data() * float("nan"), "s.npz", {}, ValueError, "Rows 0 to 74: .*NaN"),
    ],
)
def test_bad_input_is_one_clear_sentence(source, out, options, error, words, tmp_path):
    made = sure(method="adf", rate=None)
    with pytest.raises(error, match=words):
        predict_to_file(made, source, tmp_path / out, **QUIET, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "s.npz").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        scored(tmp_path / "s.npz")


def test_tables_have_bounds_and_outputs_have_rows(tmp_path):
    wide = hs.Uncertain(nn.Linear(3, 600).eval(), 0.01, "adf")
    with pytest.raises(ValueError, match="2400 columns"):
        predict_to_file(wide, data(), tmp_path / "s.csv", **QUIET)
    assert list(tmp_path.iterdir()) == []

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(0)

    with pytest.raises(ValueError, match="one row of output for each input"):
        predict_to_file(
            hs.Uncertain(Mean().eval(), 0.01, "adf"), data(), tmp_path / "s.npz", **QUIET
        )


def test_batches_begin_at_multiples_of_their_size():
    starts = [0, 24, 48, 72, 96, 100]
    assert cut_shards(100, 8, 20) == [range(a, b) for a, b in pairwise(starts)]
