"""Splits that never meet, drives from files, and weights from Keras and torch."""

import csv
import itertools

import numpy as np
import pytest
import torch

from howsure_lab.experiments.steering import model as keras_weights
from howsure_lab.experiments.steering import run
from howsure_lab.experiments.steering.data import (
    Counts,
    alternate_blocks,
    find_drives,
    frame_step,
    read_drive,
    read_frame,
    real_data,
    rendered_data,
    split_drives,
)
from howsure_lab.experiments.steering.model import (
    SMALL,
    DroNet,
    load_trained,
    load_weights,
    with_weights,
)


@pytest.mark.parametrize("count, block, gap", [(1872, 93, 13), (50, 7, 1), (31, 10, 11)])
def test_blocks_are_disjoint_and_never_neighbors(count, block, gap):
    one, two = alternate_blocks(count, block=block, gap=gap)
    distance = (one.unsqueeze(1) - two.unsqueeze(0)).abs().min()
    assert int(distance) == gap + 1
    together = torch.cat([one, two])
    assert len(together.unique()) == len(together) and int(together.max()) < count


def test_blocks_refuse_what_would_mix():
    with pytest.raises(ValueError, match="`block` and `gap` must be at least 1"):
        alternate_blocks(100, block=10, gap=0)
    with pytest.raises(ValueError, match="too few"):
        alternate_blocks(20, block=10, gap=1)


def test_rendered_parts_share_no_image():
    data = rendered_data(Counts(40, 20, 10), 16, 0.0)
    parts = [data.train.x, data.validation.x, *(pairs.x for pairs in data.tests.values())]
    images = [{image.numpy().tobytes() for image in part} for part in parts]
    assert all(one.isdisjoint(two) for one, two in itertools.combinations(images, 2))


def test_rendered_noise_has_the_stated_variance():
    clean, noisy = (rendered_data(Counts(30, 5, 5), 32, var) for var in (0.0, 0.01))
    difference = noisy.train.x - clean.train.x
    assert float(difference.var()) == pytest.approx(0.01, rel=0.03)


def write_drive(folder, count, *, header=("frame", "steering_angle"), step=3, size=(20, 16)):
    image_module = pytest.importorskip("PIL.Image")
    (folder / "center").mkdir(parents=True)
    with (folder / "steering.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i in range(count):
            name = f"{i * step:06d}.png"
            pixels = np.full(size[::-1], i % 250, np.uint8)
            image_module.fromarray(pixels).save(folder / "center" / name)
            writer.writerow([name, 0.01 * i])


def test_drives_are_read_and_split_by_blocks(tmp_path):
    write_drive(tmp_path / "train_one", 12)
    write_drive(tmp_path / "test_one", 250)
    split = split_drives(tmp_path)
    assert [drive.name for drive in split.train] == ["train_one"]
    assert frame_step(split.test) == 3
    gap = (split.validation_frames.unsqueeze(1) - split.test_frames).abs().min()
    assert int(gap) > 13  # two seconds at every third of 20 frames per second
    data = real_data(split, Counts(5, 6, 7))
    assert data.train.x.shape == (5, 1, 200, 200) and len(data.validation.y) == 6
    tested = data.tests["test drive"]
    # Every frame has the gray value of its number: images and angles stay together.
    number = (tested.x.mean((1, 2, 3)) * 255).round()
    torch.testing.assert_close((tested.y.flatten() * 100).round() % 250, number)


def test_udacity_exports_are_understood(tmp_path):
    write_drive(tmp_path / "a", 4)
    table = tmp_path / "a" / "steering.csv"
    names = [path.name for path in sorted((tmp_path / "a" / "center").iterdir())]
    table.unlink()
    with (tmp_path / "a" / "interpolated.csv").open("w") as file:
        file.write("index,timestamp,frame_id,filename,angle\n")
        for i, name in enumerate(names):
            camera = "center_camera" if i % 2 == 0 else "left_camera"
            file.write(f"{i},{i},{camera},center/{name},{0.5 * i}\n")
    drive = find_drives(tmp_path)[0]
    assert drive.angles.flatten().tolist() == [0.0, 1.0]
    (tmp_path / "a" / "interpolated.csv").unlink()
    (tmp_path / "a" / "final_example.csv").write_text(
        "frame_id,steering_angle\n" + f"{names[1].removesuffix('.png')},0.25\n"
    )
    drive = find_drives(tmp_path)[0]
    assert [path.name for path in drive.frames] == [names[1]]


def test_drives_that_cannot_be_read_say_why(tmp_path):
    with pytest.raises(FileNotFoundError, match="no drive in"):
        find_drives(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_drives(tmp_path / "nowhere")
    table = tmp_path / "steering.csv"
    table.write_text("frame,steering_angle\n")
    with pytest.raises(ValueError, match="no rows"):
        read_drive(table)
    table.write_text("picture,steering_angle\nx.jpg,1\n")
    with pytest.raises(ValueError, match="none of"):
        read_drive(table)
    table.write_text("frame,steering_angle\nx.jpg,1\n")
    with pytest.raises(FileNotFoundError, match=r"The frame `x.jpg`"):
        read_drive(table)
    (tmp_path / "x.jpg").write_bytes(b"")
    table.write_text("frame,steering_angle\nx.jpg,nan\n")
    with pytest.raises(ValueError, match="not finite"):
        read_drive(table)


def test_frames_are_cropped_as_dronet_sees_them(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.zeros((480, 640), np.uint8)
    pixels[80:, 120:520] = 255  # what remains of a 640 x 480 frame
    image_module.fromarray(pixels).save(tmp_path / "frame.png")
    frame = read_frame(tmp_path / "frame.png")
    assert frame.shape == (1, 200, 200)
    assert float(frame[0, 1:, 1:-1].min()) == 1.0


def keras_arrays(state):
    """The same weights under Keras' names and in its layout."""
    arrays = {}
    parts = {"weight": "kernel", "bias": "bias"}
    norms = {"weight": "gamma", "bias": "beta"}
    norms |= {"running_mean": "moving_mean", "running_var": "moving_variance"}
    names = {"conv1": "conv2d_1", "steer": "dense_1", "coll": "dense_2"}
    names |= {f"bn.{k}": f"batch_normalization_{k + 1}" for k in range(6)}
    order = [f"{kind}.{k}" for k in range(3) for kind in ("a", "b", "s")]
    names |= {name: f"conv2d_{n + 2}" for n, name in enumerate(order)}
    for key, tensor in state.items():
        layer, part = key.rsplit(".", 1)
        if part == "num_batches_tracked":
            continue
        array = tensor.numpy()
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        kind = norms if layer.startswith("bn") else parts
        arrays[f"{names[layer]}/{kind[part]}"] = array
    return arrays


def test_keras_weights_become_torch_weights(tmp_path):
    model = DroNet().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    state = {**model.state_dict(), "coll.weight": torch.ones(1, 6272), "coll.bias": torch.ones(1)}
    weights = keras_weights.from_keras(keras_arrays(state))
    loaded = with_weights(DroNet(), weights, "test")
    x = torch.rand(2, 1, 200, 200)
    torch.testing.assert_close(loaded(x), model(x))
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt")
    torch.testing.assert_close(load_weights(tmp_path / "w.pt")(x), model(x))


def test_wrong_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no `conv2d_1/kernel`"):
        keras_weights.from_keras({})
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="does not hold the weights of DroNet"):
        load_weights(tmp_path / "w.pt")
    with pytest.raises(FileNotFoundError, match="no weights of DroNet"):
        run.find_weights(tmp_path / "nowhere")


@pytest.mark.parametrize("size, widths", [(64, SMALL), (200, (4, 4, 8, 8)), (33, (2, 2, 2, 2))])
def test_dronet_takes_any_size(size, widths):
    assert DroNet(size, widths).eval()(torch.rand(1, 1, size, size)).shape == (1, 1)


def test_the_shipped_network_is_what_its_record_says():
    import json
    from importlib import resources

    record = json.loads(
        resources.files("howsure_lab.experiments.steering").joinpath("trained.json").read_text()
    )
    data = rendered_data(Counts(1, 1, 200), 64, record["noise_std"] ** 2)
    with torch.inference_mode():
        errors = load_trained()(data.tests["clear"].x) - data.tests["clear"].y
    assert float(errors.square().mean().sqrt()) == pytest.approx(
        record["test"]["clear"]["rmse"], rel=0.2
    )
