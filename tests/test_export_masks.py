"""Programs that take dropout masks as inputs, and what rounding does to variances in the check."""

import pytest
import torch
from torch import nn

import howsure as hs
from exports import EXPORTED, needs_onnx
from howsure.deploy.agreement import differences
from howsure.deploy.export import ExportError, export, read_metadata
from nets import perceptron, small_image_net

pytestmark = EXPORTED


def by_hand(net, x, kept, rate):
    """MC dropout of a two-layer network, one sample after the other, in double precision."""
    first, second = (layer.double() for layer in (net[0], net[2]))
    hidden = torch.relu(first(x.double()))
    rows = torch.stack([second(hidden * row.double() / (1 - rate)) for row in kept])
    net.float()
    return rows.mean(0), rows.var(0, correction=0)


def two_layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval().requires_grad_(False)


@pytest.mark.parametrize("shared", [True, False])
def test_masks_of_the_caller_are_those_that_count(shared, tmp_path):
    net, rate = two_layers(), 0.3
    options = {"rate": rate, "samples": 5, "shared_masks": shared}
    sure = hs.Uncertain(net, 0.01, "mc_dropout", **options)
    done = export(sure, torch.rand(4, 3), tmp_path / "net.pt2", masks="inputs")
    assert done.batch is None and done.inputs == ("x", "mask0_0")
    program = torch.export.load(done.path).module()
    for batch in (1, 2, 7):
        x = torch.rand(batch, 3)
        kept = (torch.rand(5, 8) if shared else torch.rand(5, batch, 8)).round()
        mean, var = by_hand(net, x, kept, rate)
        found = program(x, kept)
        torch.testing.assert_close(found["mean"].double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["model_var"].double(), var, rtol=1e-4, atol=1e-7)


def test_uniform_numbers_drop_at_the_rate(tmp_path):
    sure = hs.Uncertain(two_layers(), 0.01, "sampled_adf", rate=0.3, samples=6)
    done = export(sure, torch.rand(2, 3), tmp_path / "net.pt2", masks="inputs")
    program, x = torch.export.load(done.path).module(), torch.rand(2, 3)
    uniform = torch.rand(6, 8)
    one, two = program(x, uniform), program(x, (uniform >= 0.3).float())
    assert all(torch.equal(one[name], two[name]) for name in done.outputs)
    other = program(x, torch.rand(6, 8))
    assert not torch.allclose(one["model_var"], other["model_var"], rtol=0.01)


@pytest.mark.parametrize("method", ["sampled_adf", "mc_dropout"])
def test_masks_of_the_seed_give_the_wrapper_itself(method, tmp_path):
    sure = hs.Uncertain(two_layers(), 0.01, method, rate=0.3, samples=6, seed=4)
    x = torch.rand(3, 3)
    done = export(sure, x, tmp_path / "net.pt2", masks="inputs")
    (site,) = sure.setup.sites(x)
    (uniforms,) = hs.multipliers.draw_uniforms([site], 6, 4)
    found, expected = torch.export.load(done.path).module()(x, uniforms), sure(x)
    for name in done.outputs:
        torch.testing.assert_close(found[name], getattr(expected, name), rtol=1e-5, atol=1e-9)


def test_several_sites_and_a_rate_of_0(tmp_path):
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    sure = hs.Uncertain(net.eval(), 0.01, "sampled_adf", rate=(0.0, 0.5), samples=3)
    done = export(sure, torch.rand(2, 3), tmp_path / "net.pt2", masks="inputs")
    (mask,) = read_metadata(done.path)["masks"]
    assert mask == {
        "name": "mask1_2",
        "site": "2",
        "rate": 0.5,
        "shape": [3, 4],
        "batch_axis": None,
        "dtype": "float32",
    }
    out = torch.export.load(done.path).module()(torch.rand(2, 3), torch.zeros(3, 4))
    assert float(out["model_var"].max()) == 0.0  # All units dropped: the last layer's bias is left.


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("method", ["sampled_adf", "mc_dropout"])
def test_masks_in_onnxruntime(method, tmp_path):
    import onnxruntime

    sure = hs.Uncertain(small_image_net(), 0.01, method, rate=0.3, samples=4, seed=1)
    export(sure, torch.rand(2, 1, 8, 8), tmp_path / "net.onnx", masks="inputs")
    export(sure, torch.rand(2, 1, 8, 8), tmp_path / "net.pt2", masks="inputs")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    program = torch.export.load(tmp_path / "net.pt2").module()
    for batch in (1, 5):
        x, mask = torch.rand(batch, 1, 8, 8), torch.rand(4, 3, 1, 1)
        found = session.run(None, {"x": x.numpy(), "mask0_0": mask.numpy()})
        for one, two in zip(found, program(x, mask).values(), strict=True):
            scale = float(two.abs().max())
            torch.testing.assert_close(torch.from_numpy(one), two, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "method, options, message",
    [
        ("adf", {}, r"\"adf\" has no masks"),
        ("sampled_adf", {"rate": 0.0}, r"rates are 0"),
    ],
)
def test_methods_without_masks_are_refused(method, options, message, tmp_path):
    sure = hs.Uncertain(perceptron(), 0.1, method, **options)
    with pytest.raises(ExportError, match=message):
        export(sure, torch.rand(2, 3), tmp_path / "net.pt2", masks="inputs")
    with pytest.raises(ExportError, match=r"`masks` must be one of"):
        export(sure, torch.rand(2, 3), tmp_path / "net.pt2", masks="random")
    assert list(tmp_path.iterdir()) == []


def test_rounding_of_means_explains_tiny_variances_only():
    one, none, nan = torch.ones(1), torch.zeros(1), torch.tensor([torch.nan])
    tiny, moved, large = torch.tensor([1e-11]), torch.tensor([1.5e-11]), torch.tensor([1e-2])
    assert differences([none, none, tiny], [none, none, moved])[2] == pytest.approx(0.5)
    assert differences([one, none, tiny], [one, none, moved])[2] == 1e-5
    assert differences([one, none, large], [1.001 * one, none, 1.001 * large]) == pytest.approx(
        [1e-3, 0, 1e-3], rel=1e-3
    )
    assert not differences([one, none, tiny], [one, none, nan])[2] <= 1
    assert differences([one, none, tiny], [one, none, tiny[:0]])[2] == float("inf")
    assert differences([one / 0, none, tiny], [one / 0, none, tiny]) == [0, 0, 0]


def test_a_part_that_is_0_is_measured_by_the_total_variance():
    mean, data, model = torch.zeros(2, 1), torch.full((2, 1), 4.0), torch.zeros(2, 1)
    moved = [mean + 2e-7, data + 2e-6, model + 4e-7]
    assert differences([mean, data, model], moved) == pytest.approx([1e-7, 5e-7, 1e-7], rel=0.1)
