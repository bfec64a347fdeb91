"""Gradients of images of few channels: those of autograd, however they are computed."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import howsure as hs
from howsure import problem
from howsure.estimators import image_gradients
from howsure.estimators.image_gradients import fast_image_gradients
from old_torch import TORCH

IMAGE = torch.rand(3, 3, 13, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
KERNEL = torch.randn(8, 3, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
BIAS = torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


# Before 2.8, torch does not tell its hooks of saved tensors, and autograd computes all gradients.
CAN_SERVE = TORCH >= "2.8"
needs_hooks = pytest.mark.skipif(not CAN_SERVE, reason="this torch hides its hooks")


def served(out):
    return out.grad_fn.name() == "_WithInputGradientBackward"


@pytest.fixture(autouse=True)
def small_images_as_well(monkeypatch):
    """Images of these tests are smaller than those that gain from it."""
    monkeypatch.setattr(image_gradients, "_FEWEST_NUMBERS", 0)


def gradients(call, image, *parameters):
    """The output, and the gradients of an uneven sum of it."""
    leaves = [each.detach().clone().requires_grad_() for each in (image, *parameters)]
    # Not a leaf: autograd forbids to write into one, and sources are none.
    out = call(leaves[0] * 1, *leaves[1:])
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out, torch.autograd.grad((out.sigmoid() * weights).sum(), leaves)


def check_equal(call, image, *parameters, **tolerances):
    """The output and all gradients are those of autograd."""
    with fast_image_gradients([image]):
        out, found = gradients(call, image, *parameters)
    plain, expected = gradients(call, image, *parameters)
    assert not served(plain)
    torch.testing.assert_close(out, plain, **tolerances)
    torch.testing.assert_close(found, expected, **tolerances)
    return out


CONVOLUTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "strides": {"stride": (2, 3)},
    "row that no window reaches": {"stride": (4, 3)},
    "padding": {"padding": 2},
    "paddings": {"padding": (1, 2), "stride": 2},
    "list of one": {"padding": [1], "stride": [2]},
    "dilation": {"dilation": 2, "padding": 1},
    "dilations": {"dilation": (3, 2), "stride": (1, 2)},
    "same": {"padding": "same"},
    "same, dilated": {"padding": "same", "dilation": (3, 2)},
    "valid": {"padding": "valid", "stride": 2},
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_are_those_of_autograd(name, bias):
    own = (KERNEL, BIAS) if bias else (KERNEL,)
    out = check_equal(lambda *tensors: F.conv2d(*tensors, **CONVOLUTIONS[name]), IMAGE, *own)
    assert served(out) == CAN_SERVE


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_gradients_in_every_number_of_channels_and_order_in_memory(channels):
    image, kernel = torch.rand(2, channels, 9, 9), torch.randn(8, channels, 3, 3)
    for form in (torch.contiguous_format, torch.channels_last):
        ordered = [each.contiguous(memory_format=form) for each in (image, kernel)]
        out = check_equal(F.conv2d, *ordered, rtol=1e-4, atol=1e-5)
        assert served(out) == CAN_SERVE


def test_arguments_by_name_and_an_empty_batch():
    def named(image, weight):
        return F.conv2d(padding=1, input=image, weight=weight, stride=2)

    assert served(check_equal(named, IMAGE, KERNEL)) == CAN_SERVE
    assert served(check_equal(named, IMAGE[:0], KERNEL)) == CAN_SERVE


@pytest.mark.parametrize(
    "image, kernel, options",
    [
        (torch.rand(2, 5, 9, 9), torch.rand(8, 5, 3, 3), {}),
        (torch.rand(2, 4, 9, 9), torch.rand(8, 2, 3, 3), {"groups": 2}),
        (torch.rand(3, 9, 9), torch.rand(8, 3, 3, 3), {}),
        (torch.rand(2, 3, 9, 9).bfloat16(), torch.rand(8, 3, 3, 3).bfloat16(), {}),
        (torch.rand(2, 3, 9, 9), torch.rand(8, 3, 2, 2), {"padding": "same"}),
        (torch.rand(2, 3, 9, 9), torch.rand(2, 3, 9, 9), {}),
    ],
    ids=["channels", "groups", "no batch", "bfloat16", "one-sided", "few outputs"],
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_what_does_not_gain_is_left_to_autograd(image, kernel, options):
    with fast_image_gradients([torch.rand(1, 1, 8, 8)]):
        out = F.conv2d(image.requires_grad_() * 1, kernel, **options)
    assert not served(out)


def test_under_autocast_and_transformations_it_is_left_to_autograd():
    image, kernel = torch.rand(2, 3, 9, 9), torch.rand(8, 3, 3, 3)

    def total(x):
        return F.conv2d(x, kernel).square().sum()

    expected = torch.func.grad(total)(image)
    with fast_image_gradients([image]):
        torch.testing.assert_close(torch.func.grad(total)(image), expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert not served(F.conv2d(image.clone().requires_grad_() * 1, kernel))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}], ids=str)
def test_maxima_are_those_of_autograd_to_the_last_bit(options):
    """Rectified numbers have many equal ones, of which the gradient goes to the first."""

    def network(x, weight):
        return F.max_pool2d(F.relu(F.conv2d(x, weight)), 3, **options).view(len(x), -1)

    check_equal(network, IMAGE, KERNEL, rtol=1e-12, atol=1e-12)
    image = F.relu(torch.randn(2, 9, 14, 17, generator=torch.Generator().manual_seed(4)))
    expected = gradients(lambda x: F.max_pool2d(x, 3, **options), image)
    with fast_image_gradients([IMAGE]):
        found = gradients(lambda x: F.max_pool2d(x, 3, **options), image)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1][0], expected[1][0])
    assert found[0].stride() == expected[0].stride()


def test_a_network_may_write_into_the_output():
    def network(*tensors):
        return F.relu(F.conv2d(*tensors).mul_(2), inplace=True)

    check_equal(network, IMAGE, KERNEL, BIAS)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_gradients_can_be_differentiated(bias):
    """The gradient of the weight is a function of the image, and the other way round."""

    def inner(*tensors):
        out = F.conv2d(*tensors, stride=2, padding=1)
        found = torch.autograd.grad(out.pow(3).sum(), tensors, create_graph=True)
        return torch.cat([each.flatten() for each in found])

    check_equal(inner, IMAGE, *((KERNEL, BIAS) if bias else (KERNEL,)))


def test_kernels_made_from_the_image():
    def own_kernel(x, weight):
        return F.conv2d(x, weight * x.mean().exp())

    assert served(check_equal(own_kernel, IMAGE, KERNEL)) == CAN_SERVE


@needs_hooks
def test_no_mode_for_what_is_traced_small_or_has_other_inputs(monkeypatch):
    assert isinstance(fast_image_gradients([torch.rand(2, 8), torch.rand(2, 9, 8, 8)]), nullcontext)
    assert not isinstance(fast_image_gradients([torch.rand(2, 8), IMAGE]), nullcontext)
    monkeypatch.setattr(image_gradients, "_FEWEST_NUMBERS", 9 * IMAGE.numel())
    assert isinstance(fast_image_gradients([IMAGE], 8), nullcontext)
    assert not isinstance(fast_image_gradients([IMAGE], 9), nullcontext)
    seen = []

    def traced(x):
        seen.append(fast_image_gradients([x]))
        return x + 1

    make_fx(traced)(IMAGE)
    assert isinstance(seen[0], nullcontext)


class Net(nn.Module):
    """A convolution of few channels that normalizes, writes in place, drops out and branches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.side = nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="circular")
        self.second, self.drop = nn.Conv2d(8, 4, 3), nn.Dropout(0.2)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = (x - 0.5).div_(0.25)
        h = F.relu(self.first(x), inplace=True) + self.side(x).tanh()
        return self.head(self.drop(F.relu(self.second(h))).mean((2, 3)))


class Checkpointed(Net):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def made(kind):
    torch.manual_seed(0)
    return kind().eval()


def ordered(model):
    return model.to(memory_format=torch.channels_last)


OPTIONS = {"noise": {}, "dropout": {"rate": 0.2}, "one input": {"batch_dim": None}}
NETS = {
    "plain": lambda: made(Net),
    "frozen": lambda: made(Net).requires_grad_(False),
    "double": lambda: made(Net).double(),
    "channels_last": lambda: ordered(made(Net)),
    "checkpointed": lambda: made(Checkpointed),
    "compiled by the user": lambda: torch.compile(made(Net), backend="eager"),
}


# Masks find no place in what is run again, or compiled by others.
WITHOUT_DROPOUT = ("checkpointed", "compiled by the user")
# Each of these is tested with noise, and one input with the plain network.
BOTH_ALONE = [(name, "one input") for name in ("frozen", "double", "channels_last")]
CASES = [
    pytest.param(name, kind, marks=pytest.mark.slow if (name, kind) in BOTH_ALONE else ())
    for name in NETS
    for kind in OPTIONS
    if kind != "dropout" or name not in WITHOUT_DROPOUT
]


@pytest.mark.parametrize("name, kind", CASES)
def test_predictions_are_the_same(name, kind, monkeypatch):
    model, x, options = NETS[name](), torch.rand(2, 3, 16, 16), OPTIONS[kind]
    x = x.double() if name == "double" else x
    found = hs.Uncertain(model, 0.01, "gradients", **options)(x)
    monkeypatch.setattr(problem, "fast_image_gradients", lambda *_: nullcontext())
    expected = hs.Uncertain(model, 0.01, "gradients", **options)(x)
    assert found.notes == expected.notes and found.method == "gradients"
    for one, two in ((found.mean, expected.mean), (found.total_var, expected.total_var)):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


class Operations(TorchDispatchMode):
    """Counts the operations of the library."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@needs_hooks
def test_weights_that_require_gradients_get_none():
    """One convolution: its library gradient, which that of a weight would need, is not called."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 1))
    sure = hs.Uncertain(model.eval(), 0.01, "gradients")
    sure(torch.rand(2, 1, 8, 8))
    with Operations() as operations:
        sure(torch.rand(2, 1, 8, 8))
    assert torch.ops.aten.col2im.default in operations.seen
    assert torch.ops.aten.convolution_backward.default not in operations.seen
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
