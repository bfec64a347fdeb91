"""Second attack, fits and files: odd targets, few rows, other shapes; damaged settings."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from second import attempt, inputs, slow_but
from torch import nn

import howsure as hs

WIDTH = 6


def network(outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, outputs)).eval()


def data(rows=80, outputs=1, seed=1, std=0.1):
    x = inputs(rows, WIDTH, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        return x, network(outputs)(x) + std * torch.randn(rows, outputs, generator=generator)


def fitted(x, y, outputs=1, **settings):
    """The wrapper after a fit with what was said, or the error of ours."""
    sure = hs.Uncertain(network(outputs), 1e-4, **settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = attempt(lambda: sure.fit([(x, y)], show_progress=False))
    return sure, result, [str(one.message) for one in said]


# Targets that cannot be right: an error or a warning.
BAD_TARGETS = {
    "nan": lambda x, y: (x, torch.full_like(y, torch.nan)),
    "one nan": lambda x, y: (x, torch.cat([y[1:], torch.full((1, 1), torch.nan)])),
    "inf": lambda x, y: (x, torch.cat([y[1:], torch.full((1, 1), torch.inf)])),
    "huge": lambda x, y: (x, 1e30 * y),
    "constant": lambda x, y: (x, torch.ones_like(y)),
    "shuffled": lambda x, y: (x, y.flip(0)),
    "late": lambda x, y: (x, y.roll(1, 0)),
    "early": lambda x, y: (x, y.roll(-1, 0)),
    "sign": lambda x, y: (x, -y),
    "other units": lambda x, y: (x, 1e3 * y),
    "outlier": lambda x, y: (x, torch.cat([y[1:], 500 + y[:1]])),
    "its own outputs": lambda x, y: (x, network()(x).detach()),
    "strings": lambda x, y: (x, ["a"] * len(y)),
    "objects": lambda x, y: (x, [object()] * len(y)),
    "complex": lambda x, y: (x, torch.complex(y, y)),
    "too few": lambda x, y: (x, y[:-3]),
    "too many": lambda x, y: (x[:-3], y),
    "two for one": lambda x, y: (x, y.expand(-1, 2)),
    "flat": lambda x, y: (x, y[:, 0]),
    "another axis": lambda x, y: (x, y.mT),
    "three axes": lambda x, y: (x, y[:, :, None]),
    "number": lambda x, y: (x, 3.0),
    "none": lambda x, y: (x, None),
    "no rows": lambda x, y: (x[:0], y[:0]),
    "one row": lambda x, y: (x[:1], y[:1]),
    "nine rows": lambda x, y: (x[:9], y[:9]),
    "one row repeated": lambda x, y: (x[:1].expand(80, -1), y[:1].expand(80, -1)),
    "half repeated": lambda x, y: (x[:20].repeat(4, 1), y[:20].repeat(4, 1)),
    "nan in the inputs": lambda x, y: (torch.cat([x[1:], x[:1] * torch.nan]), y),
    "constant inputs": lambda x, y: (torch.zeros_like(x), y),
    "sparse": lambda x, y: (x, y.to_sparse()),
    "meta": lambda x, y: (x, y.to("meta")),
    "bool": lambda x, y: (x, y > 0),
}  # fmt: skip
# A shape that is the model's but for an axis of length 1 may be taken as such.
MAY_WORK = {"flat", "three axes", "another axis"}


@pytest.mark.parametrize("name", BAD_TARGETS)
@pytest.mark.parametrize("part", slow_but(["auto", "dropout"], "auto"))
def test_targets_that_cannot_be_right(name, part):
    x, y = BAD_TARGETS[name](*data())
    sure = hs.Uncertain(network(), 1e-4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = attempt(lambda: sure.fit([(x, y)], model=part, show_progress=False))
    has_word = isinstance(result, Exception) or any(
        issubclass(one.category, hs.HowsureWarning) for one in said
    )
    may_work = name in MAY_WORK or (name, part) == ("nine rows", "dropout")
    assert has_word or may_work, f"no word: {result}"


# Targets that are right: a fit whose intervals cover new data.
GOOD = {
    "plain": {},
    "one output of three": {"outputs": 3},
    "small noise": {"std": 0.01},
    "large noise": {"std": 1.0},
    "many rows": {"rows": 300},
    "few rows": {"rows": 30},
}


@pytest.mark.filterwarnings("ignore::howsure.HowsureWarning")
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "kind", slow_but(["float", "double", "array", "pair", "loader", "data set"], "float")
)
def test_fits_cover_new_data(name, kind):
    outputs = GOOD[name].get("outputs", 1)
    x, y = data(**GOOD[name])
    sure = hs.Uncertain(network(outputs), 1e-4)
    held_out = {
        "float": lambda: [(x, y)],
        "double": lambda: [(x, y.double())],
        "array": lambda: (x.numpy(), y.double().numpy()),
        "pair": lambda: (x, y),
        "loader": lambda: torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=17),
        "data set": lambda: torch.utils.data.TensorDataset(x, y),
    }[kind]()  # fmt: skip
    fit = sure.fit(held_out, show_progress=False)
    new_x, new_y = data(**{**GOOD[name], "rows": 1000, "seed": 9})
    low, high = sure(new_x).interval(0.95)
    coverage = float(((new_y >= low) & (new_y <= high)).float().mean())
    assert (0.8 if len(x) < 50 else 0.88) <= coverage <= 0.995, (coverage, str(fit))


CLASSES = {
    "honest": lambda x, c: (x, c),
    "one class": lambda x, c: (x, 0 * c),
    "two of three": lambda x, c: (x, c.clamp(max=1)),
    "floats": lambda x, c: (x, c.float()),
    "one-hot": lambda x, c: (x, nn.functional.one_hot(c, 3)),
    "one-hot floats": lambda x, c: (x, nn.functional.one_hot(c, 3).float()),
    "from 1": lambda x, c: (x, c + 1),
    "negative": lambda x, c: (x, c - 1),
    "too large": lambda x, c: (x, c + 100),
    "column": lambda x, c: (x, c[:, None]),
    "int32": lambda x, c: (x, c.int()),
    "uint8": lambda x, c: (x, c.byte()),
    "bool": lambda x, c: (x, c > 0),
    "nan": lambda x, c: (x, c * torch.nan),
    "wrong": lambda x, c: (x, (c + 1) % 3),
    "few": lambda x, c: (x[:5], c[:5]),
    "none": lambda x, c: (x[:0], c[:0]),
    "unequal": lambda x, c: (x, c[:-2]),
    "strings": lambda x, c: (x, ["cat"] * len(c)),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("part", slow_but(["auto", "dropout"], "auto"))
def test_classes_of_all_kinds(name, part):
    x = inputs(80, WIDTH)
    with torch.no_grad():
        classes = torch.distributions.Categorical(logits=network(3)(x)).sample()
    x, c = CLASSES[name](x, classes)
    sure = hs.Uncertain(network(3), 1e-4, task="classification")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = attempt(lambda: sure.fit([(x, c)], model=part, show_progress=False))
    if isinstance(result, Exception):
        assert name not in ("honest", "int32", "uint8")
        return
    if name in ("negative", "too large", "nan", "none", "unequal", "strings", "from 1"):
        assert said, f"no word: {result}"
    p = sure(inputs(20, WIDTH))
    torch.testing.assert_close(p.mean.sum(1), torch.ones(20), rtol=1e-3, atol=1e-3)
    assert bool((p.std >= 0).all())


RATE_OPTIONS = {
    "rates": [0.1, 0.2], "samples": 5, "floor": 0.1, "fit_residual_var": True,
    "objective": "gaussian",
}  # fmt: skip


@pytest.mark.parametrize("name", RATE_OPTIONS)
def test_an_option_of_the_rate_search_does_not_choose_it(name):
    sure = hs.Uncertain(network(), 1e-4)
    with pytest.raises(ValueError, match=f'`{name}`.*model="dropout"'):
        sure.fit([data()], show_progress=False, **{name: RATE_OPTIONS[name]})
    assert sure.setup.rate is None


WRONG_OPTIONS = [
    ("model", "best"), ("model", 3), ("train_inputs", "frames"), ("train_inputs", 3),
    ("train_inputs", torch.zeros(0, WIDTH)), ("train_inputs", torch.zeros(30, WIDTH + 1)),
    ("train_inputs", torch.full((30, WIDTH), torch.nan)), ("stress", "weather"), ("stress", 3),
    ("growth", "yes"), ("residual_var", -1.0), ("residual_var", "x"), ("noise_factor", -1.0),
    ("noise_factor", "x"), ("cap", "x"), ("inputs", "dirty"), ("inputs", 3), ("rate", 0.1),
    ("epochs", 3), ("dense_masks", "some"), ("masks", False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "value"), WRONG_OPTIONS, ids=lambda v: str(v)[:20])
def test_wrong_options_of_a_fit_have_one_sentence(name, value):
    sure = hs.Uncertain(network(), 1e-4)
    try:
        result = attempt(lambda: sure.fit([data()], show_progress=False, **{name: value}))
    except TypeError as error:  # Python's own, for an option that there is not.
        result = error
    assert isinstance(result, Exception), f"no word: {result}"


# Files.
@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "settings.pt"
    sure = hs.Uncertain(network(), 1e-4)
    sure.fit([data()], show_progress=False)
    sure.save(path)
    return path


def cut(share):
    return lambda blob: blob[: int(share * len(blob))]


def flipped(at):
    def flip(blob):
        place = int(at * len(blob))
        return blob[:place] + bytes([blob[place] ^ 255]) + blob[place + 1 :]

    return flip


def broken_name(blob):
    place = blob.rfind(b"data.pkl")
    return blob[:place] + b"\xff" + blob[place + 1 :]


DAMAGES = {
    "name in the table of contents": broken_name,
    "empty": cut(0), "one byte": lambda blob: blob[:1], "text": lambda blob: b"hello",
    "zip of nothing": lambda blob: b"PK\x05\x06" + 18 * b"\0", "doubled": lambda blob: 2 * blob,
    "pickle": lambda blob: pickle.dumps({"format": 5}), "json": lambda blob: b'{"format": 5}',
    "zeros": lambda blob: bytes(len(blob)), "prefix": lambda blob: b"x" + blob,
    "code": lambda blob: pickle.dumps(print),
    **{f"cut at {share}": cut(share) for share in (0.1, 0.5, 0.9, 0.999)},
    **{f"flipped at {at}": flipped(at) for at in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_have_one_sentence(name, saved, tmp_path):
    path = tmp_path / "damaged.pt"
    path.write_bytes(DAMAGES[name](saved.read_bytes()))
    result = attempt(lambda: hs.Uncertain.load(path, network()))
    if not isinstance(result, Exception):  # A byte that nobody reads.
        x = inputs(4, WIDTH)
        torch.testing.assert_close(result(x).std, hs.Uncertain.load(saved, network())(x).std)


EDITED = {
    "format": (7, "5", None, -1, 1e9), "method": ("best", 3, None), "seed": (None, "x", 1.5),
    "batch_dim": ("x", -1, 1.5), "task": ("x", None), "noise": ("x", -1.0, [1], {"a": 1}),
    "placement": ("x", 3, None), "samples": (0, "x"), "prediction": ("x", 3),
    "calibrators": ("x", 3, [3]), "variance_model": ("x", 3, {}), "rate": ("x", 2.0, [0.1, "x"]),
    "residual_var": ("x", -1.0), "tolerance": ("x", -1.0), "chunk": ("x", 0),
}  # fmt: skip
CASES = [(name, value) for name, values in EDITED.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=str)
def test_edited_settings_have_one_sentence(name, value, saved, tmp_path):
    state = torch.load(saved, weights_only=True)
    holder = (
        state
        if name in state
        else next(part for part in state.values() if isinstance(part, dict) and name in part)
    )
    holder[name] = value
    path = tmp_path / "edited.pt"
    torch.save(state, path)
    result = attempt(lambda: hs.Uncertain.load(path, network())(inputs(4, WIDTH)))
    assert isinstance(result, Exception), f"no word: {result}"


PLACES = [".", "", "a\0b", "x" * 300, "file/settings.pt"]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: repr(place)[:12])
@pytest.mark.parametrize("call", ["save", "load"])
def test_places_that_cannot_be(place, call, tmp_path):
    path = f"{tmp_path}/{place}"
    (tmp_path / "file").write_text("not a folder")
    sure = hs.Uncertain(network(), 1e-4)
    with pytest.raises((OSError, ValueError)):
        sure.save(path) if call == "save" else hs.Uncertain.load(path, network())
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("way", ["file", "state_dict", "pickle", "deepcopy", "torch.save"])
@pytest.mark.parametrize(
    "method", slow_but(["auto", "linear", "mc_dropout", "noise_sampling", "gradients"], "auto")
)
def test_settings_survive_every_way(way, method, tmp_path):
    settings = {"rate": 0.1, "samples": 7} if method == "mc_dropout" else {"seed": 3}
    sure, x = hs.Uncertain(network(), 0.01, method, **settings), inputs(4, WIDTH)
    expected = sure(x)
    if way == "file":
        sure.save(tmp_path / "s.pt")
        other = hs.Uncertain.load(tmp_path / "s.pt", network())
    elif way == "state_dict":
        other = hs.Uncertain(network(seed=5))
        other.load_state_dict(sure.state_dict())
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(sure))
    elif way == "deepcopy":
        other = copy.deepcopy(sure)
    else:
        torch.save(sure, tmp_path / "s.pt")
        other = torch.load(tmp_path / "s.pt", weights_only=False)
    torch.testing.assert_close(other(x).std, expected.std)
    assert other.method == sure.method


BAD_ROWS = {
    "text": lambda x: "rows.txt",
    "list": lambda x: x.tolist(),
    "integers": lambda x: x.long(),
    "no rows": lambda x: x[:0],
    "one number": lambda x: np.float32(3),
    "objects": lambda x: x.numpy().astype(object),
    "sparse": lambda x: x.to_sparse(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_predicted_to_a_file(name, tmp_path):
    path = tmp_path / "out.npz"
    sure = hs.Uncertain(network(), 0.01)
    rows = BAD_ROWS[name](inputs(20, WIDTH))
    result = attempt(lambda: hs.predict_to_file(sure, rows, path, show_progress=False))
    if isinstance(result, Exception):
        assert not path.exists()
    else:
        assert name == "no rows"
