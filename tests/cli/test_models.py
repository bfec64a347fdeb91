"""Models: factories, weights in three formats, exported programs; and what is refused."""

import json
import struct
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import howsure as hs

NET = "project_model:build"
# Warnings of torch's own about its own export.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:No complete tensor"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
]


def built(**options):
    import project_model

    return project_model.build(**options).eval()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nothing", "give `package.module:factory`"),
        ("no.such:thing", "There is no module `no.such`"),
        ("nets.py:thing", "Leave out `.py`: `nets:thing`"),
        ("project_model:nothing", "has no `nothing`"),
        ("project_model:number", "is a int"),
        ("project_model:broken", "`project_model:broken` failed: ZeroDivisionError: by zero"),
        ("json:dumps", "failed: TypeError"),
        ("builtins:dict", "gives a dict; it must give a `torch.nn.Module`"),
        ("missing.pt2", "There is no file `missing.pt2`"),
    ],
)
def test_models_that_are_not_there(project, refused, model, words):
    refused("predict", model, "data.npz", words=words)


def test_a_module_with_a_missing_package_is_told(project, refused):
    (project / "needy.py").write_text("import no_such_package")
    refused("check", "needy:build", "--shape", "3", words="needs `no_such_package`")


def test_factories_take_arguments(project, howsure, refused):
    torch.save(built(hidden=5).state_dict(), "five.pt")
    command = ("check", NET, "--shape", "3", "--weights", "five.pt")
    assert howsure(*command, "--model-args", '{"hidden": 5}').code == 0
    refused(*command, words="size mismatch for 0.weight")
    refused(*command, "--model-args", "[1]", words="must be a JSON object")


def test_weights_of_all_formats_give_the_same_predictions(project, howsure):
    generator = torch.Generator().manual_seed(8)
    net = built()
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    save_file(net.state_dict(), "w.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, "w.pth")
    with torch.no_grad():
        expected = net(torch.from_numpy(np.load("x.npy")).float())
    for file in ("w.safetensors", "w.pth"):
        assert howsure("predict", NET, "x.npy", "--weights", file, "--method", "adf").code == 0
        np.testing.assert_allclose(np.load("predictions.npz")["mean"], expected, rtol=1e-5)


def test_safetensors_of_all_types_are_read(project):
    from howsure.data.reading import load_weights

    tensors = {
        "halves": torch.randn(3, 2).half(),
        "brain": torch.randn(5).bfloat16(),
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
    }
    save_file(tensors, "all.safetensors", metadata={"format": "pt"})
    net = nn.Module()
    for name, tensor in tensors.items():
        net.register_buffer(name, torch.zeros_like(tensor))
    load_weights(net, "all.safetensors")
    for name, tensor in tensors.items():
        found = net.get_buffer(name)
        assert found.dtype == tensor.dtype and torch.equal(found, tensor)


def test_without_safetensors_the_remedy_is_told(project, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (project / "w.safetensors").write_bytes(b"")
    command = ("check", NET, "--shape", "3", "--weights", "w.safetensors")
    refused(*command, words="pip install 'howsure[cli]'")


def entry(shape=(1,), offsets=(0, 4), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": entry((2**40,), (0, 2**42))}, b"1234"),
        ({"a": entry((2,), (0, 4))}, b"1234"),
        ({"a": entry((1,), (0, 4))}, b"12"),
        ({"a": entry((-1,), (0, -4))}, b"1234"),
        ({"a": entry((1,), (-4, 0))}, b"1234"),
        ({"a": entry(dtype="F4")}, b"1234"),
        ({"a": {"dtype": "F32"}}, b"1234"),
        ({"a": 3}, b"1234"),
        ([1], b""),
        (b"{{{", b""),
    ],
)
def test_damaged_safetensors(project, refused, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (project / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    words = "`w.safetensors` is not a whole `.safetensors` file"
    refused("check", NET, "--shape", "3", "--weights", "w.safetensors", words=words)


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<Q", 2**60), b"\xff" * 40])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_files_that_are_no_weights(project, refused, name, content):
    (project / name).write_bytes(content)
    refused("check", NET, "--shape", "3", "--weights", name, words=f"`{name}`")


def test_truncated_weights(project, refused):
    save_file(built().state_dict(), "w.safetensors")
    for name in ("w.safetensors", "weights.pt"):
        whole = (project / name).read_bytes()
        (project / name).write_bytes(whole[: len(whole) // 2])
        refused("check", NET, "--shape", "3", "--weights", name, words=f"`{name}`")


def test_weights_that_do_not_fit(project, refused):
    command = ("check", NET, "--shape", "3", "--weights", "other.pt")
    state = built().state_dict()
    torch.save({"0.weight": state["0.weight"], "extra": torch.ones(1)}, "other.pt")
    refused(*command, words='Missing key(s) in state_dict: "0.bias", "2.weight", "2.bias"')
    torch.save({**state, "0.bias": torch.full((8,), torch.nan)}, "other.pt")
    refused(*command, words="`0.bias` in `other.pt` contains NaN")
    refused(*command[:-1], "missing.pt", words="There is no file `missing.pt`")
    refused(*command[:-1], "data.npz", words="must end in")


class Trap:
    """Pickled, it would leave a file behind when it is loaded."""

    def __reduce__(self):
        return open, ("sprung", "w")


def test_weights_are_never_unpickled(project, refused):
    torch.save({"0.weight": Trap()}, "weights.pt")
    refused("check", NET, "--shape", "3", "--weights", "weights.pt", words="cannot be read")
    assert not (project / "sprung").exists()


def exported(net, x, path="net.pt2", **options):
    torch.export.save(torch.export.export(net, (x,), strict=False, **options), path)


def test_a_program_is_not_even_opened_without_trust(project, refused):
    opened = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
    (project / "net.pt2").write_bytes(b"anything")
    for command in (("predict", "net.pt2", "x.npy"), ("check", "net.pt2", "--shape", "3")):
        refused(*command, words="it can run code; if you know where it comes from, `--trust`")
    assert not [name for name in opened if str(name).endswith("net.pt2")][1:]  # the one above


def test_an_exported_program_predicts_as_its_module(project, howsure):
    exported(built(), torch.rand(4, 3), dynamic_shapes=({0: torch.export.Dim("rows")},))
    options = ("--noise-std", "0.1", "--rate", "0.1", "--method", "sampled_adf")
    program = ("net.pt2", "x.npy", "--trust")
    assert howsure("predict", *program, *options, "--out", "a.npz").code == 0
    assert howsure("predict", NET, "x.npy", *options, "--out", "b.npz").code == 0
    one, two = np.load("a.npz"), np.load("b.npz")
    for name in ("mean", "data_var", "model_var"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-8)
    assert howsure("check", "net.pt2", "--trust", "--shape", "3").code == 0
    fit = ("fit", "net.pt2", "data.npz", "--trust", "--noise-std", "0.1")
    assert howsure(*fit, "--model-part", "dropout").code == 0


def test_an_exported_program_of_a_fixed_batch(project, howsure, refused):
    exported(built(), torch.rand(5, 3))
    options = ("--trust", "--noise-std", "0.1", "--method", "adf")
    assert howsure("predict", "net.pt2", "x.npy", *options).code == 0
    net = hs.Uncertain(built(), noise=hs.noise.std(0.1), method="adf")
    with torch.no_grad():
        expected = net(torch.from_numpy(np.load("x.npy")).float()).data_var
    np.testing.assert_allclose(np.load("predictions.npz")["data_var"], expected, rtol=1e-5)
    (project / "predictions.npz").unlink()
    np.save("seven.npy", np.ones((7, 3)))
    refused("predict", "net.pt2", "seven.npy", *options, words="takes 5 rows at a time")
    budget = ("budget", "net.pt2", "x.npy", "--trust", "--noise-std", "0.1", "--rows", "7")
    assert howsure(*budget).code == 0
    check = ("check", "net.pt2", "--trust", "--shape", "3", "--weights", "weights.pt")
    refused(*check, words="its own weights")


def test_a_program_exported_in_train_mode_is_refused(project, refused):
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    exported(net, torch.rand(4, 3))
    refused("predict", "net.pt2", "x.npy", "--trust", words="was exported in train mode")


@pytest.mark.parametrize("cut", [0, 10, 2000])
def test_damaged_programs(project, refused, cut):
    exported(built(), torch.rand(4, 3))
    (project / "net.pt2").write_bytes((project / "net.pt2").read_bytes()[:cut])
    refused("predict", "net.pt2", "x.npy", "--trust", words="cannot be read as a program")
