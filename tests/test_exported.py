"""Exported programs give what the Python module gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import howsure as hs

# Warnings of torch's own about its own export.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]

IMAGE, SEQUENCE, TOKENS = (2, 3, 8, 8), (2, 5, 3), (2, 4, 8)


class Residual(nn.Module):
    """A ResNet in small: strided convolutions, in-place sums, a max pool, a global average."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1))
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding="same")
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.second(y)
        y += x
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        skip = F.leaky_relu(self.down(x), 0.1)
        y = self.up(F.elu(self.deep(F.avg_pool2d(skip, 2))))[:, :, ::2, ::2]
        y = F.interpolate(y, scale_factor=1.5, mode="bilinear", align_corners=False)
        y = F.interpolate(y, size=skip.shape[-2:], mode="nearest")
        return torch.sigmoid(self.out(torch.cat([skip, y], 1)))


class Normalized(nn.Module):
    """Group, instance and RMS norm, and a depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.group = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.instance, self.rms = nn.InstanceNorm2d(4, affine=True), nn.RMSNorm(6)

    def forward(self, x):
        x = self.rms(F.gelu(self.group(self.conv(x))))
        return self.instance(self.depthwise(x)).mean((2, 3))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.position = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 5, 8))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.proj(y)
        return (x + self.mlp(self.norm2(x)))[:, 0]


class Last(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, network):
        super().__init__()
        self.network = network(3, 4, 2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.network(x)[0][:, -1]


class Gathering(nn.Module):
    """Reads, writes, products and reductions."""

    def forward(self, x):
        mask = torch.tensor([True, False, True, False, True])
        y = torch.where(mask, x.sum(-1), x.amax(-1)) + x.norm(dim=-1) + x.std(-1)
        y = y.masked_fill(mask, 0.5) + torch.einsum("bij,j->bi", x, torch.ones(3))
        y = y.index_select(1, torch.tensor([4, 3, 2, 1, 0])) + F.pad(y[:, 1:], (0, 1))
        return torch.logsumexp(y, 1), torch.lerp(y, y.flip(1), 0.3), F.log_softmax(y, 1), 2**y


def _encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETS = {
    "residual": (Residual, IMAGE),
    "unet": (UNet, IMAGE),
    "normalized": (Normalized, IMAGE),
    "vision transformer": (VisionTransformer, IMAGE),
    "encoder": (_encoder, TOKENS),
    "encoder, norm first": (lambda: _encoder(norm_first=True, activation="gelu"), TOKENS),
    "lstm": (lambda: Last(nn.LSTM), SEQUENCE),
    "gru": (lambda: Last(nn.GRU), SEQUENCE),
    "rnn": (lambda: Last(nn.RNN), SEQUENCE),
    "gathering": (Gathering, SEQUENCE),
}


def _made(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    model = make().eval().requires_grad_(False)
    for path, buffer in model.named_buffers():
        if path.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 2)
    return model, torch.randn(shape)


def _exported(model, x):
    return torch.export.export(model, (x,), strict=False)


def _assert_same(one, two, rtol=1e-5):
    torch.testing.assert_close(one.mean, two.mean, rtol=rtol, atol=1e-6)
    torch.testing.assert_close(one.var, two.var, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_exported_program_equals_the_module(name):
    model, x = _made(name)
    program = _exported(model, x)
    expected = hs.propagate(model, x, 0.01)
    _assert_same(hs.propagate(program.module(), x, 0.01), expected)
    functional = program.run_decompositions({})
    _assert_same(hs.propagate(functional.module(), x, 0.01), expected)


def test_decomposed_program_is_refused_with_the_remedy():
    model, x = _made("vision transformer")
    program = _exported(model, x).run_decompositions()
    with pytest.raises(hs.NoRuleError, match="Export again"):
        hs.propagate(program.module(), x, 0.01)


def test_program_from_a_file(tmp_path):
    model, x = _made("vision transformer")
    path = tmp_path / "model.pt2"
    torch.export.save(_exported(model, x), path)
    program = torch.export.load(path).module()
    _assert_same(hs.propagate(program, x, 0.01), hs.propagate(model, x, 0.01))


class Writing(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 0] = 2 * x[:, 1]
        return y.clamp(-1, 1) + x


def test_writes_through_views_need_a_functional_program():
    model, x = Writing(), torch.randn(3, 4)
    program = _exported(model, x)
    with pytest.raises(hs.NoRuleError, match="in place"):
        hs.propagate(program.module(), x, 0.01)
    functional = program.run_decompositions({}).module()
    _assert_same(hs.propagate(functional, x, 0.01), hs.propagate(model, x, 0.01))


def test_in_place_operation_on_a_copy_leaves_the_original():
    class Copying(nn.Module):
        def forward(self, x):
            y = x.clone()
            y.mul_(3)
            return x + y

    model, x = Copying(), torch.randn(3, 4)
    expected = hs.propagate(model, x, 0.01)
    _assert_same(hs.propagate(_exported(model, x).module(), x, 0.01), expected)
