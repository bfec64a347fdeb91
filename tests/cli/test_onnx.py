"""Networks from ONNX files: the predictions of the module they come from, and what is refused."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.data.reading import load_model
from howsure.data.reading.onnx_file import check_against_runtime

onnx = pytest.importorskip("onnx")
NET = "project_model:build"


def can_convert():
    try:
        import onnx2torch  # noqa: F401
    except Exception:  # torchvision fails in its own ways where it does not fit torch
        return False
    return True


converts = pytest.mark.skipif(not can_convert(), reason="onnx2torch cannot be imported here")


def tensor(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)


def value(name, *sizes):
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)


def write(path, nodes, inputs, outputs, weights=(), opset=17):
    graph = onnx.helper.make_graph(nodes, "graph", inputs, outputs, list(weights))
    opsets = [onnx.helper.make_opsetid("", opset)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def node(operator, inputs, outputs, name="", **attributes):
    return onnx.helper.make_node(operator, inputs, outputs, name=name, **attributes)


def write_sequential(net, path, rows="rows", opset=17):
    """Linear layers with ReLUs between them; the second as a product and a sum."""
    first, _, second = net
    w, v = first.weight.detach(), second.weight.detach()
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["p"]),
        node("Add", ["p", "c"], ["y"]),
    ]
    biases = [tensor("b", first.bias.detach()), tensor("c", second.bias.detach())]
    weights = [tensor("w", w), tensor("v", v.T.contiguous()), *biases]
    inputs, outputs = [value("x", rows, w.shape[1])], [value("y", rows, len(v))]
    write(path, nodes, inputs, outputs, weights, opset)


def built():
    import project_model

    return project_model.build().eval()


@pytest.mark.skipif(importlib.util.find_spec("onnx2torch") is not None, reason="it is installed")
def test_without_the_package_a_sentence_has_the_pip_line(project, refused):
    write_sequential(built(), "net.onnx")
    words = "`net.onnx` needs `onnx2torch`, which is not installed; `pip install 'howsure[onnx]'`"
    refused("predict", "net.onnx", "data.npz", "--noise-std", "0.1", words=words)


def test_a_file_that_is_not_there(project, refused):
    refused("predict", "none.onnx", "data.npz", words="There is no file `none.onnx`")


def test_it_has_its_own_weights(project, refused):
    write_sequential(built(), "net.onnx")
    options = ("--weights", "weights.pt")
    refused("predict", "net.onnx", "data.npz", *options, words="`.onnx` file has its own weights")


@converts
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_it_predicts_as_its_module(project, howsure, opset):
    write_sequential(built(), "net.onnx", opset=opset)
    options = ("--noise-std", "0.1", "--rate", "0.1", "--method", "sampled_adf")
    assert howsure("predict", "net.onnx", "x.npy", *options, "--out", "a.npz").code == 0
    assert howsure("predict", NET, "x.npy", *options, "--out", "b.npz").code == 0
    one, two = np.load("a.npz"), np.load("b.npz")
    for name in ("mean", "data_var", "model_var"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-8)


@converts
def test_it_is_fitted(project, howsure):
    write_sequential(built(), "net.onnx")
    generator = np.random.default_rng(0)
    np.savez("many.npz", x=generator.normal(size=(80, 3)), y=generator.normal(size=(80, 1)))
    command = ("fit", "net.onnx", "many.npz", "--noise-std", "0.1", "--out", "s.pt")
    ran = howsure(*command)
    assert ran.code == 0, ran.err
    options = ("--noise-std", "0.1", "--settings", "s.pt", "--out", "p.npz")
    assert howsure("predict", "net.onnx", "x.npy", *options).code == 0
    assert (np.load("p.npz")["model_var"] > 0).all()


@converts
def test_products_are_layers_of_their_own(tmp_path):
    weights = [tensor("a", torch.randn(3, 5)), tensor("b", torch.randn(5, 4))]
    weights.append(tensor("c", torch.randn(4, 2)))
    names = ["x", "h", "g", "y"]
    nodes = [node("MatMul", [names[i], "abc"[i]], [names[i + 1]]) for i in range(3)]
    write(tmp_path / "net.onnx", nodes, [value("x", "n", 3)], [value("y", "n", 2)], weights)
    sure = hs.Uncertain(load_model(str(tmp_path / "net.onnx")).module, rate=0.1)
    sites = sure.setup.sites(torch.randn(2, 3))
    assert [(site.name, site.units) for site in sites] == [
        ("MatMul_0_weight", (5,)),
        ("MatMul_1_weight", (4,)),
    ]


@converts
def test_inputs_keep_their_names_and_a_fixed_batch_is_known(tmp_path):
    nodes = [node("Sub", ["left", "right"], ["y"])]
    inputs = [value("left", 4, 3), value("right", 4, 3)]
    write(tmp_path / "net.onnx", nodes, inputs, [value("y", 4, 3)])
    found = load_model(str(tmp_path / "net.onnx"))
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    torch.testing.assert_close(found.module(right=a, left=b), b - a)
    assert found.batch == 4


@converts
@pytest.mark.parametrize("where", ["node", "input"])
def test_names_in_a_file_do_not_become_code(tmp_path, where):
    """Names go into generated Python, where a quote would end the string that holds them."""
    sprung = tmp_path / "sprung"
    payload = f'training") or open("{sprung}", "w") or getattr(self, "a'
    inner, outer = (payload, "x") if where == "node" else ("a", payload)
    nodes = [node("Relu", [outer], ["y"], name=inner)]
    write(tmp_path / "net.onnx", nodes, [value(outer, "n", 3)], [value("y", "n", 3)])
    module = load_model(str(tmp_path / "net.onnx")).module
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), x.relu())
    assert not sprung.exists()


@converts
def test_nodes_of_the_same_name_all_run(tmp_path):
    nodes = [
        node("Relu", ["x"], ["a"], name="n"),
        node("Neg", ["a"], ["b"], name="n"),
        node("Exp", ["b"], ["y"], name="n_1"),
    ]
    write(tmp_path / "net.onnx", nodes, [value("x", "n", 3)], [value("y", "n", 3)])
    x = torch.randn(2, 3)
    found = load_model(str(tmp_path / "net.onnx")).module(x)
    torch.testing.assert_close(found, (-x.relu()).exp())


@converts
def test_one_of_several_outputs_of_an_operator_is_refused(tmp_path):
    nodes = [node("Split", ["x"], ["y", "z"], axis=1)]
    write(tmp_path / "net.onnx", nodes, [value("x", "n", 4)], [value("z", "n", 2)], opset=13)
    with pytest.raises(ValueError, match="`z` is not the only one of its operator"):
        load_model(str(tmp_path / "net.onnx"))


@converts
def test_what_cannot_be_read_is_told_in_one_sentence(project, refused):
    (project / "net.onnx").write_bytes(b"no network")
    refused("predict", "net.onnx", "data.npz", words="cannot be read as a network by `onnx2torch`")
    nodes = [node("Det", ["x"], ["y"])]
    write("odd.onnx", nodes, [value("x", "n", 3, 3)], [value("y", "n")])
    refused("predict", "odd.onnx", "data.npz", words="opset_version=17")


def written(path, *nodes, sizes=("n", 3)):
    write(path, list(nodes), [value("x", *sizes)], [value("y", *sizes)])
    return pytest.importorskip("onnx").load(path)


def test_a_network_that_says_something_else_than_onnxruntime_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    model = written(path, node("Exp", ["x"], ["y"]))
    check_against_runtime(Returning(torch.exp), model, path)
    with pytest.raises(ValueError, match="differ from those that onnxruntime gives"):
        check_against_runtime(Returning(torch.expm1), model, path)


def test_a_network_that_cannot_be_compared_is_told(tmp_path):
    path = tmp_path / "net.onnx"
    open_size = written(path, node("Exp", ["x"], ["y"]), sizes=("n", "m"))
    with pytest.warns(UserWarning, match="a size besides the batch is left open"):
        check_against_runtime(Returning(torch.exp), open_size, path)
    unknown = written(path, node("Strange", ["x"], ["y"], domain="elsewhere"))
    with pytest.warns(UserWarning, match="was not compared with onnxruntime"):
        check_against_runtime(Returning(torch.exp), unknown, path)


class Returning(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@converts
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_torch_exports(tmp_path, caplog):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    ).eval()
    x, any_batch = torch.randn(4, 1, 8, 8), ({0: torch.export.Dim("rows")},)
    program = torch.onnx.export(net, (x,), dynamo=True, verbose=False, dynamic_shapes=any_batch)
    (tmp_path / "net.onnx").write_bytes(program.model_proto.SerializeToString())
    found = load_model(str(tmp_path / "net.onnx"))
    assert found.batch is None
    one, two = (hs.Uncertain(each, 0.01)(x[:3]) for each in (found.module, net))
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.std, two.std, rtol=1e-3, atol=1e-5)
