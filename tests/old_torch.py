"""What an older torch lacks: tests of it are skipped there, each with the reason."""

import pytest
import torch
from torch.torch_version import TorchVersion

from howsure.data.reading.programs import OLDEST_CHECKED

TORCH = TorchVersion(torch.__version__)
# The refusal itself is tested with every torch: see `tests/cli/test_models.py`.
checks_programs = pytest.mark.skipif(
    TORCH < OLDEST_CHECKED, reason=f"`.pt2` files can be checked from torch {OLDEST_CHECKED} on"
)
