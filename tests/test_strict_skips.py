"""`--strict-skips` fails for skips that nobody allowed, also of whole files and with workers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARK = "import pytest\n@pytest.mark.skipif(True, reason='{}')\ndef test_a(): pass\n"
CALL = "import pytest\ndef test_a(): pytest.skip('{}')\n"
FILE = "import pytest\npytest.skip('{}', allow_module_level=True)\n"
PASSES = "def test_b(): pass\n"
XFAIL = "import pytest\n@pytest.mark.xfail(reason='{}')\ndef test_a(): assert False\n"


def code_of(folder, test, *options):
    """pytest's exit code and output, for one file of tests with the hooks of this folder's."""
    shutil.copy(HERE / "strict_skips.py", folder / "conftest.py")
    (folder / "allowed_skips.txt").write_text("# not this\nno such thing\n")
    (folder / "test_it.py").write_text(test)
    (folder / "test_other.py").write_text(PASSES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # Plugins that are not asked for take longer than the tests.
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)
    return done.returncode, done.stdout


KINDS = [
    pytest.param(MARK, id="mark", marks=pytest.mark.slow),
    pytest.param(CALL, id="call", marks=pytest.mark.slow),
    pytest.param(FILE, id="file"),
]


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "workers"])
@pytest.mark.parametrize("test", KINDS)
def test_an_unexpected_skip_fails_the_run(tmp_path, test, workers):
    code, out = code_of(tmp_path, test.format("the moon is full"), "--strict-skips", *workers)
    assert code == 1 and "1: the moon is full" in out


@pytest.mark.parametrize("test", KINDS)
def test_what_is_allowed_passes(tmp_path, test):
    assert code_of(tmp_path, test.format("no such thing"), "--strict-skips")[0] == 0
    assert code_of(tmp_path, test.format("# not this"), "--strict-skips")[0] == 1
    assert code_of(tmp_path, test.format("the moon is full"))[0] == 0


def test_an_expected_failure_is_no_skip(tmp_path):
    assert code_of(tmp_path, XFAIL.format("the moon is full"), "--strict-skips")[0] == 0
