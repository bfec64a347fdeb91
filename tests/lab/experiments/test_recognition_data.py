"""CIFAR-10 in its formats, networks with the right names and sizes, UCI splits."""

import pickle

import numpy as np
import pytest
import torch

import howsure as hs
from howsure_lab.experiments.recognition import resnets
from howsure_lab.experiments.recognition.data import (
    Counts,
    cifar_data,
    digit_data,
    read_cifar,
    split_three,
    strange_images,
)
from howsure_lab.experiments.recognition.run import classification_scores
from howsure_lab.experiments.uci.data import diabetes, read_all, split


def random_images(count, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3, 32, 32), np.uint8)
    return images, random.integers(0, 10, count)


def write_python(folder, x, y, protocol=2):
    folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        content = {b"data": x.reshape(len(x), -1), b"labels": y.tolist(), b"batch_label": b"one"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


def write_binary(folder, x, y):
    folder.mkdir()
    records = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], 1)
    for name in ("data_batch_1", "test_batch"):
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_npz(folder, x, y):
    folder.mkdir()
    turned = x.transpose(0, 2, 3, 1)
    np.savez(folder / "cifar10.npz", x_train=turned, y_train=y, x_test=turned, y_test=y)


@pytest.mark.parametrize("write", [write_python, write_binary, write_npz])
def test_all_formats_give_the_same_images(write, tmp_path):
    x, y = random_images(6)
    write(tmp_path / "data", x, y)
    found = read_cifar(tmp_path)
    assert np.array_equal(found.train_x.numpy(), x) and np.array_equal(found.test_x.numpy(), x)
    assert found.test_y.tolist() == y.tolist()


def test_a_batch_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("this must not be printed",))

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(ValueError, match=r"asks for `builtins\.print`"):
        read_cifar(tmp_path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("test_batch", b"", "not a python batch"),
        ("test_batch", pickle.dumps({b"labels": []}), "not a python batch"),
        ("test_batch.bin", b"123", "multiple of 3073"),
    ],
)
def test_broken_batches_say_so(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_cifar(tmp_path)


def test_no_cifar_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no CIFAR-10"):
        read_cifar(tmp_path)
    np.savez(tmp_path / "cifar.npz", x_train=np.zeros(1))
    with pytest.raises(ValueError, match="has no"):
        read_cifar(tmp_path)


def test_parts_of_the_images_are_disjoint(tmp_path):
    parts = split_three(100, Counts(20, 30), 0)
    assert [len(part) for part in parts] == [50, 20, 30]
    assert len(torch.cat(parts).unique()) == 100
    x, y = random_images(40)
    write_npz(tmp_path / "data", x, y)
    data = cifar_data(read_cifar(tmp_path), Counts(10, 20))
    seen = {image.numpy().tobytes() for image in data.validation.x}
    assert not any(image.numpy().tobytes() in seen for image in data.test.x)
    with pytest.raises(ValueError, match="too few"):
        split_three(50, Counts(20, 30), 0)


def test_digits_are_disjoint_and_noisy():
    pytest.importorskip("sklearn")
    clean, noisy = digit_data(Counts(100, 200), 0.0), digit_data(Counts(100, 200), 0.1)
    assert float((noisy.test.x - clean.test.x).std()) == pytest.approx(0.1, rel=0.02)
    seen = {image.numpy().tobytes() for image in clean.train.x}
    assert not any(image.numpy().tobytes() in seen for image in clean.test.x)


def test_strange_images_have_the_same_gray_values():
    x = torch.rand(4, 3, 8, 8)
    strange = strange_images(x, patch=4)
    torch.testing.assert_close(
        strange["shuffled"].flatten(2).sort(2).values, x.flatten(2).sort(2).values
    )
    assert not torch.equal(strange["shuffled"], x)
    torch.testing.assert_close(strange["negative"].std((0, 2, 3)), x.std((0, 2, 3)))


@pytest.mark.parametrize("depth, parameters", [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_cifar_resnets_have_the_published_size(depth, parameters):
    model = resnets.CifarResNet(depth)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_checkpoints_with_a_prefix_are_loaded(tmp_path):
    model = resnets.CifarResNet(20).eval()
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "net.th")
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(resnets.load_pretrained(tmp_path / "net.th", 20)(x), model(x))
    with pytest.raises(ValueError, match="does not hold"):
        resnets.load_pretrained(tmp_path / "net.th", 32)


def test_classification_scores():
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    var = torch.full((4, 2), 0.01)
    found = hs.Prediction(probabilities, var, torch.zeros_like(var))
    scores = classification_scores(found, torch.tensor([0, 1, 1, 1]))
    assert scores["accuracy"] == 75.0
    assert scores["errors_entropy"] == 1.0 and scores["errors_std"] == 0.5
    target = torch.tensor([0, 1, 1, 1])
    right = classification_scores(found, probabilities.argmax(1))
    assert np.isnan(right["errors_entropy"])
    expected = -probabilities.gather(1, target[:, None]).log().mean()
    assert scores["categorical_nll"] == pytest.approx(float(expected))


def test_uci_folders_are_read_and_splits_are_disjoint(tmp_path):
    folder = tmp_path / "toy" / "data"
    folder.mkdir(parents=True)
    table = np.arange(60.0).reshape(20, 3)
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 1])
    np.savetxt(folder / "index_target.txt", [2])
    np.savetxt(folder / "index_train_0.txt", np.arange(15))
    np.savetxt(folder / "index_test_0.txt", np.arange(15, 20))
    data = read_all(tmp_path)[0]
    assert data.name == "toy" and data.x.shape == (20, 2) and data.y.shape == (20, 1)
    parts = split(data, 0)
    values = [pairs.y * parts.scale + parts.center for pairs in (parts.train, parts.validation)]
    together = torch.cat([*values, parts.test.y * parts.scale + parts.center]).flatten()
    torch.testing.assert_close(together.sort().values, data.y.flatten())
    torch.testing.assert_close(parts.train.x.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    np.savetxt(folder / "index_test_0.txt", np.arange(14, 20))
    with pytest.raises(ValueError, match="both train and test"):
        read_all(tmp_path)


def test_diabetes_splits_cover_the_data():
    pytest.importorskip("sklearn")
    data = diabetes()
    for train, test in data.splits:
        assert len(torch.cat([train, test]).unique()) == len(data.y)
