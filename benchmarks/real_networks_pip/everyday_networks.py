"""More networks from PyPI, with random weights: what people of many fields would wrap first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import Case
from packages import hugging_face, normal, of, shipped, source
from torch import Tensor, nn


def vit(file: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    """A class of a file of vit-pytorch, whose `__init__` asks for torchvision."""
    return lambda: getattr(source("vit_pytorch", file), name)(**options)


class Call(nn.Module):
    """A network with the inputs that carry no noise: a time, edges, kinds of atoms."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.model, x)


def _mean_of_parts(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).mean(1)


_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def _posterior_mean() -> nn.Module:
    x = normal(30, 3)().double()
    return of("botorch.models:SingleTaskGP")(x, x[:, :1].sin() + x[:, 1:2])


def _neural_ode() -> nn.Module:
    field = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    return of("torchdyn.core:NeuralODE")(field, solver="rk4")


def _masked_flow() -> nn.Module:
    transform = of("nflows.transforms:MaskedAffineAutoregressiveTransform")(4, 32)
    return of("nflows.flows.base:Flow")(
        transform, of("nflows.distributions.normal:StandardNormal")([4])
    )


def _small_mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def _invertible() -> nn.Module:
    flow = of("FrEIA.framework:SequenceINN")(4)
    for _ in range(3):
        flow.append(of("FrEIA.modules:AllInOneBlock"), subnet_constructor=_small_mlp)
    return flow


_ATOMS = torch.tensor([6, 1, 1, 8, 1, 6, 1, 7])


def _schnet() -> nn.Module:
    pairs = torch.tensor([(a, b) for a in range(8) for b in range(8) if a != b]).T

    def graph(place: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return pairs, (place[pairs[0]] - place[pairs[1]]).norm(dim=-1)

    return of("torch_geometric.nn:SchNet")(32, 32, 2, 16, interaction_graph=graph)


def _on_a_ring(model: Any, x: Tensor) -> Tensor:
    """The network at 12 nodes that are joined to a ring."""
    ring = torch.arange(12)
    return model(x, torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])]))


def _spiking() -> nn.Module:
    leaky = of("snntorch:Leaky")
    last = leaky(0.9, init_hidden=True, output=True)
    return nn.Sequential(nn.Linear(8, 32), leaky(0.9, init_hidden=True), nn.Linear(32, 2), last)


def _rate(net: nn.Module, x: Tensor) -> Tensor:
    of("snntorch.utils:reset")(net)
    return torch.stack([net(x)[1] for _ in range(10)]).mean(0)


def _bayesian() -> nn.Module:
    layer = of("torchbnn:BayesLinear")
    return nn.Sequential(layer(0, 0.1, 8, 32), nn.ReLU(), layer(0, 0.1, 32, 2))


def _quantized() -> nn.Module:
    net = shipped("torchrl.modules:MLP", in_features=8, out_features=2, num_cells=[64, 64])()
    return torch.ao.quantization.quantize_dynamic(net.eval(), {nn.Linear})


def _fm() -> nn.Module:
    features = [of("deepctr_torch.inputs:DenseFeat")(f"f{i}", 1) for i in range(8)]
    return of("deepctr_torch.models:DeepFM")(features, features, task="regression")


def _mamba() -> nn.Module:
    return of("mambapy.mamba:Mamba")(of("mambapy.mamba:MambaConfig")(d_model=16, n_layers=2))


def _x_transformer() -> nn.Module:
    return of("x_transformers:ContinuousTransformerWrapper")(
        dim_in=4,
        dim_out=2,
        max_seq_len=16,
        attn_layers=of("x_transformers:Encoder")(dim=32, depth=2, heads=4),
    )


def _nature() -> nn.Module:
    space = of("gymnasium:spaces.Box")(0.0, 1.0, (1, 84, 84), of("numpy:float32"))
    network = of("stable_baselines3.common.torch_layers:NatureCNN")
    return network(space, 8, normalized_image=True)


def _dueling() -> nn.Module:
    net = of("torchrl.modules:DuelingCnnDQNet")(6)
    net(_image(84, 2, 4)())  # Its lazy layers get their weights here.
    return net


def _image(size: int, count: int = 2, channels: int = 3) -> Callable[[], Tensor]:
    """Smooth pictures, standardized."""

    def make() -> Tensor:
        small = torch.randn(count, channels, 4, 4, generator=torch.Generator().manual_seed(1))
        return nn.functional.interpolate(small, size=(size, size), mode="bicubic")

    return make


def _volume() -> Tensor:
    small = torch.randn(2, 1, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(small, size=(32, 32, 32), mode="trilinear")


def _case(
    name: str,
    package: str,
    make: Callable[[], nn.Module],
    inputs: Callable[[], Any],
    noise: float = 0.05,
    call: Callable[[Any, Tensor], Any] | None = None,
    **more: Any,
) -> Case:
    """A network with random weights; `call` says how it is called."""
    build = make if call is None else lambda: Call(make(), call)
    return Case(name, package, build, inputs, noise, True, **{"samples": 400, **more})


_LOGITS = {"output": "logits"}

# fmt: off
EVERYDAY = (
    # Tables
    _case("FT-Transformer", "rtdl-revisiting-models",
        shipped("rtdl_revisiting_models:FTTransformer", n_cont_features=8, cat_cardinalities=[],
            d_out=1, n_blocks=2, d_block=32, attention_n_heads=4, attention_dropout=0.1,
            ffn_d_hidden_multiplier=2, ffn_dropout=0.1, residual_dropout=0.0), normal(16, 8),
        call=lambda m, x: m(x, None)),
    _case("ResNet for tables", "rtdl-revisiting-models",
        shipped("rtdl_revisiting_models:ResNet", d_in=8, d_out=1, n_blocks=2, d_block=64,
            d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0), normal(16, 8)),
    _case("TabM", "tabm",
        shipped("tabm:TabM.make", n_num_features=8, d_out=1), normal(16, 8), call=_mean_of_parts),
    _case("TabNet", "pytorch-tabnet",
        shipped("pytorch_tabnet.tab_network:TabNet", 8, 1, group_attention_matrix=torch.eye(8)),
        normal(16, 8), options={"output": 0}),
    _case("TabTransformer's FT", "tab-transformer-pytorch",
        shipped("tab_transformer_pytorch:FTTransformer", categories=(), num_continuous=8, dim=32,
            dim_out=1, depth=2, heads=4), normal(16, 8),
        call=lambda m, x: m(torch.zeros(len(x), 0, dtype=torch.long), x)),
    _case("DeepFM", "deepctr-torch", _fm, normal(16, 8)),
    _case("KAN", "pykan", shipped("kan:KAN", width=[4, 5, 1], grid=3, k=3, seed=0, auto_save=False),
        normal(16, 4)),
    # Images
    _case("EfficientNet-B0", "efficientnet-pytorch",
        shipped("efficientnet_pytorch:EfficientNet.from_name", "efficientnet-b0", num_classes=10),
        _image(64)),
    _case("SimpleViT", "vit-pytorch",
        vit("simple_vit.py", "SimpleViT", image_size=32, patch_size=8, num_classes=10, dim=64,
            depth=2, heads=4, mlp_dim=128), _image(32, 4)),
    _case("Compact convolutional transformer", "vit-pytorch",
        vit("cct.py", "CCT", img_size=32, embedding_dim=64, n_conv_layers=1, num_layers=2,
            num_heads=4, mlp_ratio=2.0, num_classes=10), _image(32, 4)),
    _case("MobileViT", "vit-pytorch",
        vit("mobile_vit.py", "MobileViT", image_size=(64, 64), dims=[24, 32, 40],
            channels=[8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 64], num_classes=10), _image(64)),
    _case("gMLP", "g-mlp-pytorch",
        shipped("g_mlp_pytorch:gMLPVision", image_size=32, patch_size=8, num_classes=10, dim=64,
            depth=2), _image(32, 4)),
    _case("MLP-Mixer", "mlp-mixer-pytorch",
        shipped("mlp_mixer_pytorch:MLPMixer", image_size=32, channels=3, patch_size=8, dim=64,
            depth=2, num_classes=10), _image(32, 4)),
    _case("Perceiver", "perceiver-pytorch",
        shipped("perceiver_pytorch:Perceiver", num_freq_bands=4, max_freq=10.0, depth=1,
            input_channels=3, num_latents=16, latent_dim=32, latent_heads=2, latent_dim_head=16,
            num_classes=5), lambda: _image(16, 4)().movedim(1, -1)),
    _case("Vision Transformer", "transformers",
        hugging_face("ViT:ForImageClassification", **_SMALL, image_size=32, patch_size=8,
            num_labels=10), _image(32, 4), options=_LOGITS),
    _case("ConvNeXt V2", "transformers",
        hugging_face("ConvNextV2:ForImageClassification", hidden_sizes=[16, 32, 64, 128],
            depths=[1, 1, 2, 1], num_labels=10), _image(64), options=_LOGITS),
    _case("Swin", "transformers",
        hugging_face("Swin:ForImageClassification", image_size=32, patch_size=2, embed_dim=16,
            depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=10), _image(32),
        options=_LOGITS),
    _case("HardNet descriptor", "kornia", shipped("kornia.feature:HardNet", False),
        _image(32, 4, 1)),
    # Maps
    _case("SegFormer", "transformers",
        hugging_face("Segformer:ForSemanticSegmentation", hidden_sizes=[16, 32, 40, 64],
            depths=[1, 1, 1, 1], decoder_hidden_size=32, num_labels=2), _image(64),
        options=_LOGITS),
    _case("Dense prediction transformer, depth", "transformers",
        hugging_face("DPT:ForDepthEstimation", **{**_SMALL, "num_hidden_layers": 4}, image_size=32,
            patch_size=8, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 16, 16],
            fusion_hidden_size=16), _image(32), options={"output": "predicted_depth"}),
    _case("MONAI U-Net", "monai",
        shipped("monai.networks.nets:UNet", spatial_dims=2, in_channels=1, out_channels=2,
            channels=(8, 16, 32), strides=(2, 2), num_res_units=1), _image(64, 2, 1)),
    _case("MONAI SegResNet, volume", "monai",
        shipped("monai.networks.nets:SegResNet", spatial_dims=3, init_filters=8, in_channels=1,
            out_channels=1, blocks_down=(1, 1), blocks_up=(1,)), _volume),
    _case("Fourier neural operator", "neuraloperator",
        shipped("neuralop.models:FNO", n_modes=(8, 8), hidden_channels=16, in_channels=1,
            out_channels=1, n_layers=2), _image(32, 2, 1)),
    _case("Denoising U-Net", "diffusers",
        shipped("diffusers:UNet2DModel", sample_size=16, in_channels=1, out_channels=1,
            block_out_channels=(16, 32), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), layers_per_block=1, norm_num_groups=8,
            attention_head_dim=8), _image(16, 2, 1), call=lambda m, x: m(x, 10).sample),
    _case("Autoencoder of latent diffusion", "diffusers", shipped("diffusers:AutoencoderTiny"),
        _image(32), options={"output": "sample"}, samples=200),
    _case("YOLOS, boxes", "transformers",
        hugging_face("Yolos:ForObjectDetection", **_SMALL, image_size=[64, 64], patch_size=16,
            num_detection_tokens=10, num_labels=3), _image(64), options={"output": "pred_boxes"}),
    # Series, sound, signals
    _case("N-BEATS, forecast", "nbeats-pytorch",
        shipped("nbeats_pytorch.model:NBeatsNet", device="cpu", forecast_length=8,
            backcast_length=24, hidden_layer_units=32), normal(8, 24), options={"output": 1}),
    _case("iTransformer, forecast", "iTransformer",
        shipped("iTransformer:iTransformer", num_variates=5, lookback_len=32, dim=32, depth=2,
            heads=4, dim_head=16, pred_length=8), normal(8, 32, 5),
        options={"output": lambda y: y[8] if isinstance(y, dict) else y}),
    _case("PatchTSMixer", "transformers",
        hugging_face("PatchTSMixer:ForRegression", context_length=64, patch_length=8,
            num_input_channels=3, d_model=16, num_layers=2, num_targets=2, loss="mse"),
        lambda: {"past_values": normal(8, 64, 3)()}, options={"output": "regression_outputs"}),
    _case("Closed-form continuous network", "ncps",
        shipped("ncps.torch:CfC", 6, 32, proj_size=2, return_sequences=False), normal(16, 12, 6),
        options={"output": 0}),
    _case("Liquid time constants", "ncps", shipped("ncps.torch:LTC", 6, 16, return_sequences=False),
        normal(16, 8, 6), options={"output": 0}),
    _case("Mamba", "mambapy", _mamba, normal(8, 16, 16), call=lambda m, x: m(x)[:, -1]),
    _case("Conv-TasNet, separation", "asteroid",
        shipped("asteroid.models:ConvTasNet", 2, n_filters=32, kernel_size=16, stride=8, n_blocks=2,
            n_repeats=1, bn_chan=16, hid_chan=32, skip_chan=16), normal(2, 400)),
    _case("wav2vec 2.0", "transformers",
        hugging_face("Wav2Vec2:ForSequenceClassification", **_SMALL, conv_dim=(16, 16),
            conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
            num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, classifier_proj_size=16,
            num_labels=2), normal(4, 1600), options=_LOGITS),
    _case("Audio spectrogram transformer", "transformers",
        hugging_face("AST:ForAudioClassification", **_SMALL, max_length=32, num_mel_bins=32,
            num_labels=3), normal(4, 32, 32), options=_LOGITS),
    _case("ECAPA-TDNN, speaker", "speechbrain",
        shipped("speechbrain.lobes.models.ECAPA_TDNN:ECAPA_TDNN", 40, lin_neurons=16,
            channels=[32, 32, 32, 32, 96]), normal(4, 30, 40)),
    _case("Conformer block", "conformer",
        shipped("conformer:ConformerBlock", dim=32, dim_head=8, heads=4), normal(8, 20, 32),
        call=_mean_of_parts),
    _case("Transformer of continuous inputs", "x-transformers", _x_transformer, normal(8, 16, 4)),
    _case("BERT classifier, embeddings", "transformers",
        hugging_face("Bert:ForSequenceClassification", **_SMALL, vocab_size=50, num_labels=3),
        lambda: {"inputs_embeds": normal(4, 10, 32)()}, options=_LOGITS),
    _case("Linformer", "linformer",
        shipped("linformer:Linformer", dim=32, seq_len=16, depth=2, heads=4, k=8),
        normal(8, 16, 32), call=_mean_of_parts),
    _case("Performer", "performer-pytorch",
        shipped("performer_pytorch:Performer", dim=32, depth=2, heads=4, dim_head=8),
        normal(8, 16, 32), call=_mean_of_parts),
    # Science
    _case("SIREN", "siren-pytorch",
        shipped("siren_pytorch:SirenNet", dim_in=2, dim_hidden=64, dim_out=1, num_layers=3),
        normal(16, 2), 0.005),
    _case("SchNet, energy of a molecule", "torch-geometric", _schnet, lambda: 2 * normal(8, 3)(),
        call=lambda m, x: m(_ATOMS, x), options={"batch_dim": None}),
    _case("GCN, 12 nodes", "torch-geometric",
        shipped("torch_geometric.nn.models:GCN", 8, 16, 2, 3), normal(12, 8), call=_on_a_ring),
    _case("GAT, 12 nodes", "torch-geometric",
        shipped("torch_geometric.nn.models:GAT", 8, 16, 2, 3, heads=2), normal(12, 8),
        call=_on_a_ring),
    _case("E(n)-equivariant network", "egnn-pytorch",
        shipped("egnn_pytorch:EGNN", dim=16), normal(6, 10, 3),
        call=lambda m, x: m(normal(1, 10, 16)().expand(len(x), -1, -1), x)[1].mean(1)),
    _case("Neural ODE", "torchdyn", _neural_ode, normal(16, 2),
        call=lambda ode, x: ode(x, torch.linspace(0, 1, 2))[1][-1]),
    _case("Gaussian process", "botorch", _posterior_mean, lambda: normal(8, 3)().double(),
        options={"output": "mean"}),
    _case("Neural spline flow, log density", "zuko",
        shipped("zuko:flows.NSF", 3, transforms=2, hidden_features=(32, 32)), normal(16, 3),
        call=lambda flow, x: flow().log_prob(x)[:, None]),
    _case("Masked autoregressive flow", "nflows", _masked_flow, normal(16, 4),
        call=lambda flow, x: flow.log_prob(x)[:, None]),
    _case("Invertible network", "FrEIA", _invertible, normal(16, 4), options={"output": 0}),
    _case("Spherical Fourier operator", "torch-harmonics",
        shipped("torch_harmonics.examples.models:SphericalFourierNeuralOperator",
            img_size=(16, 32), in_chans=1, out_chans=1, embed_dim=8, num_layers=2, scale_factor=1),
        normal(2, 1, 16, 32)),
    # Control
    _case("NatureCNN", "stable-baselines3", _nature, lambda: _image(84, 2, 1)().sigmoid(),
        0.02),
    _case("Dueling DQN", "torchrl", _dueling, _image(84, 2, 4)),
    _case("Spiking network", "snntorch", _spiking, normal(16, 8), call=_rate),
    _case("Bayesian layers", "torchbnn", _bayesian, normal(16, 8)),
    _case("MLP, dynamically quantized", "torchrl", _quantized, normal(16, 8)),
)
# fmt: on
