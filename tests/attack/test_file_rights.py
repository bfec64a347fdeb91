"""Files: who may read them, links that point elsewhere, names that are not ours, bombs."""

import os
import stat
import zipfile

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.data.reading import load_checkpoint
from howsure.files import write_atomically

NET = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
ROWS = torch.randn(20, 6)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o027, 0o002], indirect=True)
@pytest.mark.parametrize("kind", ["settings", "scores", "text"])
def test_a_new_file_has_what_the_umask_leaves(tmp_path, umask, kind):
    path = tmp_path / "file.npz"
    write(kind, path)
    assert mode(path) == 0o666 & ~umask


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("rights", [0o600, 0o640, 0o664])
@pytest.mark.parametrize("kind", ["settings", "scores", "text"])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path, rights, kind):
    path = tmp_path / "file.npz"
    path.write_text("before")
    path.chmod(rights)
    write(kind, path)
    assert mode(path) == rights and path.read_bytes() != b"before"


def write(kind, path):
    sure = hs.Uncertain(NET, noise=0.01)
    if kind == "settings":
        sure.save(path)
    elif kind == "scores":
        hs.predict_to_file(sure, ROWS, path, show_progress=False)
    else:
        write_atomically(path, lambda file: file.write("after"), text=True)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("data")
    parts = tmp_path / "a.npz.parts"
    parts.mkdir()
    (parts / "lock").symlink_to(precious)
    with pytest.raises(ValueError, match="is a link"):
        hs.predict_to_file(hs.Uncertain(NET, 0.01), ROWS, tmp_path / "a.npz", show_progress=False)
    assert precious.read_text() == "data"


@pytest.mark.parametrize("name", ["merged", ".rows-of-mine", "rows-1.npz", ".manifest.json.bak"])
def test_files_of_other_names_in_the_folder_stay(tmp_path, name):
    parts = tmp_path / "a.npz.parts"
    parts.mkdir()
    (parts / name).write_text("mine")
    sure = hs.Uncertain(NET, 0.01)
    hs.predict_to_file(sure, ROWS, tmp_path / "a.npz", show_progress=False, fresh=True)
    assert (parts / name).read_text() == "mine" and (tmp_path / "a.npz").exists()


def test_a_small_file_that_unpacks_to_much_is_not_loaded(tmp_path):
    plain, bomb = tmp_path / "plain.pt", tmp_path / "bomb.pt"
    torch.save({"weight": torch.zeros(5_000_000)}, plain)
    with zipfile.ZipFile(plain) as whole, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as small:
        for entry in whole.infolist():
            small.writestr(entry.filename, whole.read(entry))
    assert bomb.stat().st_size < 100_000
    assert load_checkpoint(plain)["weight"].numel() == 5_000_000
    with pytest.raises(ValueError, match="would unpack to 20 MB"):
        load_checkpoint(bomb)
    with pytest.raises(ValueError, match="would unpack to 20 MB"):
        hs.Uncertain.load(bomb, NET)
