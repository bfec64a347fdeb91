"""Arrays that lie: pickles, bombs, damage and malformed headers are refused in one sentence."""

import zipfile

import numpy as np
import pytest
from small_project import NET

from howsure.data.reading.files import MAX_ARRAY_BYTES, check_size


class Trap:
    """Pickled, it would leave a file behind when it is loaded."""

    def __reduce__(self):
        return open, ("sprung", "w")


def test_arrays_are_never_unpickled(project, refused):
    trap = np.array([Trap()], dtype=object)
    np.save("trap.npy", trap, allow_pickle=True)
    np.savez("trap.npz", x=trap)
    for file in ("trap.npy", "trap.npz"):
        refused("predict", NET, file, words="pickled Python objects")
    assert not (project / "sprung").exists()
    np.save("words.npy", np.array(["a", "b"]))
    refused("predict", NET, "words.npy", words="give real numbers")


def npy_bytes(shape):
    """A header that declares an array of float64, and no data."""
    import io

    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def test_declared_sizes_are_checked_before_anything_is_read(project, refused):
    (project / "huge.npy").write_bytes(npy_bytes((2**50, 3)))
    refused("predict", NET, "huge.npy", words="`huge.npy` cannot be read as an array")
    with zipfile.ZipFile("huge.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes((2**50, 3)))
    refused("predict", NET, "huge.npz", words="The array `x` of `huge.npz` cannot be read")


def test_a_zip_bomb_is_refused_by_what_it_declares(project, refused, howsure):
    np.savez_compressed("bomb.npz", x=np.zeros((100_000, 3)))
    assert (project / "bomb.npz").stat().st_size < 5000
    command = ("check", NET, "bomb.npz")
    refused(*command, "--max-bytes", "1000000", words="`--max-bytes 2400128`")
    assert howsure(*command, "--max-bytes", "2400128").code == 0


def test_an_entry_that_lies_about_its_size_is_damaged(project, refused):
    np.savez_compressed("data.npz", x=np.load("x.npy"))
    content = bytearray((project / "data.npz").read_bytes())
    at = content.rfind(b"PK\x01\x02") + 24  # the size in the archive's directory
    content[at : at + 4] = (100).to_bytes(4, "little")
    (project / "data.npz").write_bytes(bytes(content))
    refused("predict", NET, "data.npz", words="`data.npz`")


@pytest.mark.parametrize("file", ["data.npz", "packed.npz"])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.9])
def test_truncated_archives(project, refused, file, place):
    content = (project / file).read_bytes()
    (project / file).write_bytes(content[: int(place * len(content))])
    refused("predict", NET, file, words="is not a readable `.npz` archive")


@pytest.mark.parametrize("file", ["data.npz", "packed.npz"])
def test_changed_bytes_are_noticed_by_their_check_sum(project, refused, file):
    content = bytearray((project / file).read_bytes())
    content[300] ^= 0xFF
    (project / file).write_bytes(bytes(content))
    refused("predict", NET, file, words=f"`{file}`")


def test_the_limit_has_a_default():
    with pytest.raises(ValueError, match=f"--max-bytes {5 * 2**30}"):
        check_size(5 * 2**30, MAX_ARRAY_BYTES, "It")


def npy(header, data=b"", version=b"\x01\x00"):
    """A `.npy` file with any text as its header."""
    text = header if isinstance(header, bytes) else header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


HEADER = "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n"


@pytest.mark.parametrize("way", ["data", "target", "noise", "archive"])
@pytest.mark.parametrize(
    "content",
    [
        npy("{"),
        npy("{'descr': '<f8'"),
        npy("("),
        npy("'"),
        npy("'''"),
        npy("1"),
        npy(""),
        npy("\0"),
        npy(b"\xff\xfe"),
        npy("[" * 5000),
        npy("-" * 9000 + "1"),
        npy("9" * 9000),
        npy("{}"),
        npy("{[]: 1}"),
        npy("{1: 1}"),
        npy("{**{}}"),
        npy("__import__('os').system('touch sprung')"),
        npy(HEADER.format("'<f8'", "False", "(-2, -1)"), bytes(16)),
        npy(HEADER.format("'<f8'", "False", "(True, 2)"), bytes(16)),
        npy(HEADER.format("'<f8'", "False", "(1.0, 2)"), bytes(16)),
        npy(HEADER.format("'<f8'", "False", "((1,), 2)"), bytes(16)),
        npy(HEADER.format("'<f8'", "False", "2"), bytes(16)),
        npy(HEADER.format("'<f8'", "7", "(2,)"), bytes(16)),
        npy(HEADER.format("'<f8'", "False", f"({2**70}, 0)")),
        npy(HEADER.format("'<f8'", "False", f"({2**40}, {2**40}, 0)")),
        npy(HEADER.format("'<f8'", "False", "(" + "1, " * 99 + ")"), bytes(8)),
        npy(HEADER.format("'<f8,'", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("'nothing'", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("('<f8', -1)", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("('<f8', (2, 2**99))", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("[('a',)]", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("[[]]", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("None", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("'<f99'", "False", "(2,)"), bytes(16)),
        npy(HEADER.format("'<U0'", "False", "(2,)"), bytes(16)),
        npy("", version=b"\x09\x09"),
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"\x93NUMPY",
    ],
)
@pytest.mark.filterwarnings("ignore")  # numpy's own, about old files
def test_malformed_headers_of_arrays(project, refused, content, way):
    (project / "bad.npy").write_bytes(content)
    with zipfile.ZipFile("bad.npz", "w") as archive:
        archive.writestr("x.npy", content)
    options = {
        "data": ("bad.npy", "--noise-std", "0.1"),
        "target": ("x.npy", "--noise-std", "0.1", "--target", "bad.npy"),
        "noise": ("x.npy", "--noise-std", "bad.npy"),
        "archive": ("bad.npz", "--noise-std", "0.1"),
    }
    command = "report" if way == "target" else "predict"
    refused(command, NET, *options[way], words="bad.np")
    assert not (project / "sprung").exists()
