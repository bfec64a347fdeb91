"""The C++ example builds, and gives what the wrapper gives."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import howsure as hs
from howsure.deploy.export import export
from nets import perceptron

SOURCE = Path(__file__).parents[1] / "examples" / "cpp" / "run.cpp"
TORCH = Path(torch.__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
HEADER = TORCH / "include/torch/csrc/inductor/aoti_package/model_package_loader.h"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(not HEADER.exists(), reason="torch came without its C++ headers"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, built with the libtorch that the Python package holds."""
    path = tmp_path_factory.mktemp("cpp") / "run"
    headers = [f"-I{TORCH}/include", f"-I{TORCH}/include/torch/csrc/api/include"]
    libraries = [f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [str(COMPILER), "-std=c++20", abi, *headers, str(SOURCE), "-o", str(path), *libraries]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return path


def test_cpp_program_gives_what_the_wrapper_gives(program, tmp_path):
    sure = hs.Uncertain(perceptron(), 0.01, "sampled_adf", rate=0.2, samples=5)
    export(sure, torch.rand(2, 3), tmp_path / "net.pt2", compiled=True)
    for batch in (1, 4):
        found = subprocess.run(
            [program, tmp_path / "net.pt2", str(batch), "3"], capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        rows = [[float(word) for word in line.split()] for line in found.stdout.splitlines()]
        expected = sure(torch.linspace(0, 1, 3 * batch).reshape(batch, 3))
        both = torch.stack([expected.mean.flatten(), expected.std.flatten()], 1)
        torch.testing.assert_close(torch.tensor(rows), both, rtol=1e-5, atol=1e-7)


def test_cpp_program_says_how_it_is_called(program):
    found = subprocess.run([program], capture_output=True, text=True)
    assert found.returncode == 2 and "usage" in found.stderr
