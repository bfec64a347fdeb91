"""What an older torch lacks: tests of it are skipped there, each with the reason."""

import torch
from torch.torch_version import TorchVersion

TORCH = TorchVersion(torch.__version__)
