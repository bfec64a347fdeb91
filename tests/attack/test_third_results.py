"""Third attack, results: classes, ensembles, learned variances, graphs, fits, files, threads."""

import copy
import itertools
import math
import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from third import WIDTH, Net, linear, numbers, outcome, rows, some_fast, spread, truth_of_rows
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT
from torch.nn import functional as F

import howsure as hs

# Classes: the std of every probability, and of every logit.

LOGITS = {
    "linear": (WIDTH, 4),
    "small": (WIDTH, 16, 3),
    "one hidden unit": (WIDTH, 1, 3),
    "ten": (WIDTH, 32, 10),
    "two": (WIDTH, 16, 2),
    "one": (WIDTH, 16, 1),
    "many": (WIDTH, 16, 40),
}
FORMS = {
    "plain": lambda z: z,
    "scaled": lambda z: 8 * z,
    "shifted": lambda z: z + 100.0,
    "clipped": lambda z: z.clamp(-0.3, 0.3),
    "by cosine": lambda z: 20 * F.normalize(z, dim=-1),
    "log softmax": lambda z: z.log_softmax(-1),
    "masked": lambda z: z - 1e4 * (torch.arange(z.shape[-1]) == 0).float() * (z.shape[-1] > 2),
}
PROBABILITIES = {
    "classification": lambda z: z.softmax(-1),
    "binary": torch.sigmoid,
    "multilabel": torch.sigmoid,
}


def run_classes(head, form, task, var, method="auto"):
    if (task == "binary") != (head == "one"):
        return None
    sizes = LOGITS[head]
    model = Net(lambda s, x: FORMS[form](s.a(x)), a=linear(*sizes, act=nn.ReLU)).eval()
    x = rows(6)
    sure = hs.Uncertain(model, var, method, task=task)
    kept = {}

    def predict():
        kept["p"] = sure(x)
        return kept["p"]

    result = outcome(predict, *truth_of_rows(lambda x: PROBABILITIES[task](model(x)), x, var))
    if result != "right" or kept["p"].logits is None:
        return result
    logits = replace(kept["p"].logits, notes=kept["p"].notes)
    return outcome(lambda: logits, *truth_of_rows(model, x, var))


# Ensembles: the law of total variance, by hand.


def net(seed=0, *sizes, act=nn.Tanh):
    torch.manual_seed(seed)
    return linear(*(sizes or (WIDTH, 12, 2)), act=act)().eval()


MEMBERS = {
    "two": lambda: [net(0), net(1)],
    "five": lambda: [net(i) for i in range(5)],
    "one": lambda: [net(0)],
    "the same twice": lambda: [net(0)] * 2,
    "other widths": lambda: [net(0), net(1, WIDTH, 30, 2)],
    "other activations": lambda: [net(0), net(1, act=nn.ReLU)],
    "steps": lambda: [net(0), nn.Sequential(net(1), Net(lambda s, z: (3 * z).round()))],
    "no gradient": lambda: [net(0), Net(torch.no_grad()(lambda s, x: s.a(x)), a=net(1))],
    "shared body": lambda: (lambda body: [nn.Sequential(body, net(i, 12, 2)) for i in range(3)])(
        net(9, WIDTH, 12)
    ),
    "functions of one": lambda: [Net(lambda s, x: s.a(2 * x), a=net(0)), net(0)],
}


def run_ensemble(name, var):
    members = [m.eval() for m in MEMBERS[name]()]
    x = rows(5)
    squares = [truth_of_rows(m, x, var)[0].square() for m in members]
    with torch.no_grad():
        means = torch.stack([m(x).double().flatten() for m in members])
    total = torch.stack(squares).mean(0) + means.var(0, correction=0)
    std = total.sqrt()
    return outcome(lambda: hs.Ensemble(members, noise=var)(x), std, 0.02 * std)


# Networks that predict their own variance.


def heads(form):
    def run(s, x):
        z = s.a(x)
        return form(z[:, :1], z[:, 1:])

    return Net(run, a=net(3)).eval()


GAUSSIANS = {
    "normal": (lambda m, v: Normal(m, F.softplus(v)), None, lambda m, v: F.softplus(v).square()),
    "independent": (
        lambda m, v: Independent(Normal(m, F.softplus(v)), 1),
        None,
        lambda m, v: F.softplus(v).square(),
    ),
    "mean and var": (lambda m, v: {"mean": m, "var": v.exp()}, None, lambda m, v: v.exp()),
    "loc and scale": (lambda m, v: {"loc": m, "scale": v.exp()}, None, lambda m, v: (2 * v).exp()),
    "pair of log var": (lambda m, v: (m, v), hs.Gaussian(log_var=1), lambda m, v: v.exp()),
    "pair of std": (lambda m, v: (m, v.exp()), hs.Gaussian(std=1), lambda m, v: (2 * v).exp()),
    "columns": (
        lambda m, v: torch.cat([m, v], 1),
        hs.Gaussian(lambda y: y[:, :1], log_var=lambda y: y[:, 1:]),
        lambda m, v: v.exp(),
    ),
    "swapped": (lambda m, v: (v.exp(), m), hs.Gaussian(1, var=0), lambda m, v: v.exp()),
    "attributes": (
        lambda m, v: SimpleNamespace(mu=m, s=v.exp()),
        hs.Gaussian("mu", std="s"),
        lambda m, v: (2 * v).exp(),
    ),
    "within": (
        lambda m, v: {"head": (m, v), "more": m},
        hs.Gaussian(0, log_var=1, within="head"),
        lambda m, v: v.exp(),
    ),
    "zero variance": (lambda m, v: (m, 0 * v), hs.Gaussian(var=1), lambda m, v: 0 * v),
    "negative variance": (lambda m, v: (m, -v.exp()), hs.Gaussian(var=1), None),
    "steps in the mean": (
        lambda m, v: (m + 3 * (m > 0), v),
        hs.Gaussian(log_var=1),
        lambda m, v: v.exp(),
    ),
    "multivariate": (
        lambda m, v: MultivariateNormal(m, v.exp()[:, :, None]),
        None,
        lambda m, v: v.exp(),
    ),
    "student": (lambda m, v: StudentT(5.0, m, v.exp()), None, lambda m, v: (2 * v).exp() * 5 / 3),
}


def run_gaussian(name, var, method="auto"):
    form, output, learned = GAUSSIANS[name]
    model, x = heads(form), rows(5)
    mean = {"steps in the mean": lambda m: m + 3 * (m > 0)}.get(name, lambda m: m)
    std, error = truth_of_rows(lambda x: mean(model.a(x)[:, :1]), x, var)
    with torch.no_grad():
        z = model.a(x)
        own = (
            learned(z[:, :1], z[:, 1:]).double().flatten()
            if learned
            else torch.full_like(std, torch.nan)
        )
    total = (std.square() + own).sqrt()

    def predict():
        return hs.Uncertain(model, var, method, output=output)(x)

    if learned is None:  # There is no right number.
        result = outcome(predict, std, error)
        return result if result == "refused" else f"WRONG: a variance below 0: {result}"
    return outcome(predict, total, error * std / total.clamp(min=1e-30))


# Graphs of different sizes in one batch.


class Graph(nn.Module):
    """Two rounds of messages, and what a graph is made of in the end."""

    def __init__(self, pool):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.last, self.pool = (
            nn.Linear(6, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 2),
            pool,
        )

    def forward(self, x, edge_index, batch):
        h = torch.tanh(self.a(x))
        source, target = edge_index
        h = h + torch.zeros_like(h).index_add(0, target, torch.tanh(self.b(h[source])))
        return self.last(self.pool(h, batch, int(batch.max()) + 1))


def pooled(reduce):
    def run(h, batch, count):
        index = batch[:, None].expand_as(h)
        return h.new_zeros(count, h.shape[1]).scatter_reduce(
            0, index, h, reduce, include_self=False
        )

    return run


POOLS = {"sum": pooled("sum"), "mean": pooled("mean"), "max": pooled("amax")}


def run_graphs(pool, sizes, var):
    model = Graph(POOLS[pool]).eval()
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(batch), 6, generator=torch.Generator().manual_seed(4))
    edges, start = [], 0
    for size in sizes:
        edges += [(start + i, start + (i + 1) % size) for i in range(size)]
        start += size
    data = SimpleNamespace(x=x, edge_index=torch.tensor(edges).mT, batch=batch)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        draws = [
            model(
                x + math.sqrt(var) * torch.randn(x.shape, generator=generator),
                data.edge_index,
                batch,
            ).flatten()
            for _ in range(2500)
        ]
    graphs = hs.Graphs(model, nodes=max(sizes), edges=max(sizes)).eval()
    sure = hs.Uncertain(graphs, noise={"x": var})
    return outcome(lambda: sure(**graphs.rows(data)), *spread(torch.stack(draws).double()))


# Fits with odd targets: the same numbers as with plain ones, or one sentence.

FIT_X = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))


def body():
    return net(5, 6, 16, 1)


def plain_targets():
    noise = 0.2 * torch.randn(120, 1, generator=torch.Generator().manual_seed(2))
    return (body()(FIT_X) + noise).detach()


SAME = {
    "flat": lambda y: y[:, 0],
    "double": lambda y: y.double(),
    "list": lambda y: y[:, 0].tolist(),
    "nested list": lambda y: y.tolist(),
    "tuple": lambda y: tuple(y[:, 0].tolist()),
    "array": lambda y: y.numpy(),
    "flat array": lambda y: y[:, 0].numpy(),
    "fortran array": lambda y: np.asfortranarray(y.numpy()),
    "array of float64": lambda y: y.double().numpy(),
    "with gradient": lambda y: y.clone().requires_grad_(),
    "not contiguous": lambda y: torch.cat([y, y], 1)[:, ::2],
    "negative strides": lambda y: y.numpy()[::-1].copy()[::-1],
    "list of tensors": lambda y: list(y),
    "read-only": lambda y: (lambda a: (a.setflags(write=False), a)[1])(y.numpy().copy()),
    "expanded": lambda y: y.expand(120, 1),
    "of one more axis": lambda y: y[:, :, None],
    "a row": lambda y: y.mT,
    "two columns": lambda y: torch.cat([y, y], 1),
    "complex": lambda y: y.to(torch.complex64),
    "text": lambda y: [str(v) for v in y[:, 0].tolist()],
    "nan": lambda y: torch.where(torch.arange(120)[:, None] == 3, torch.nan, y),
    "infinite": lambda y: torch.where(torch.arange(120)[:, None] == 3, torch.inf, y),
    "too few": lambda y: y[:100],
    "too many": lambda y: torch.cat([y, y[:1]]),
    "none": lambda y: [None] * 120,
    "empty": lambda y: y[:0],
    "one number": lambda y: y[0, 0],
    "integers": lambda y: (100 * y).long(),
    "booleans": lambda y: y > 0,
    "half": lambda y: y.half(),
    "dict": lambda y: {"y": y},
    "objects": lambda y: y.numpy().astype(object),
    "generator": lambda y: (v for v in y),
    "sparse": lambda y: y.to_sparse(),
    "meta": lambda y: y.to("meta"),
    "nested": lambda y: torch.nested.nested_tensor(list(y)),
}


def run_targets(name):
    """ "right" if the std is that of plain targets to a part in 100."""
    wanted = hs.Uncertain(body(), 1e-3)
    wanted.fit(FIT_X, plain_targets(), show_progress=False)
    std = numbers(wanted(FIT_X[:5]).std)

    def predict():
        sure = hs.Uncertain(body(), 1e-3)
        sure.fit(FIT_X, SAME[name](plain_targets()), show_progress=False)
        return sure(FIT_X[:5])

    room = 3.0 if name in ("integers", "booleans") else 0.01
    if name == "integers":  # In other units.
        std = 100 * std
    return outcome(predict, std, 0 * std, room=room)


COVERED = {
    "gaussian": lambda g, n: torch.randn(n, 1, generator=g),
    "uniform": lambda g, n: 3.4 * (torch.rand(n, 1, generator=g) - 0.5),
    "laplace": lambda g, n: (
        (torch.rand(n, 1, generator=g) - 0.5).sign() * -torch.rand(n, 1, generator=g).log() / 1.4
    ),
    "two peaks": lambda g, n: (
        torch.randn(n, 1, generator=g).sign() + 0.1 * torch.randn(n, 1, generator=g)
    ),
    "rounded": lambda g, n: torch.randn(n, 1, generator=g).round(),
    "student": lambda g, n: (
        torch.randn(n, 1, generator=g)
        / (torch.randn(n, 4, generator=g).square().mean(1, keepdim=True)).sqrt()
        / 1.4
    ),
}


def run_coverage(kind, scale, rows_, seed):
    """95 % intervals of a fit on honest data cover 85 to 100 % of new targets."""
    g = torch.Generator().manual_seed(seed)
    model = Net(lambda s, x: scale * s.a(x), a=body()).eval()
    x, new = torch.randn(rows_, 6, generator=g), torch.randn(1500, 6, generator=g)
    with torch.no_grad():
        y = model(x) + scale * 0.3 * COVERED[kind](g, rows_)
        later = model(new) + scale * 0.3 * COVERED[kind](g, 1500)
    sure = hs.Uncertain(model, 1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sure.fit(x, y, show_progress=False)
    low, high = sure(new).interval(0.95)
    covered = float(((later >= low) & (later <= high)).float().mean())
    return "right" if 0.88 <= covered <= 1.0 else f"WRONG: covers {covered:.3f}"


# Settings with bytes that are others: refused, or the same numbers.


def run_bytes(seed, kind, folder):
    generator = torch.Generator().manual_seed(seed)
    sure = hs.Uncertain(body(), hs.noise.std(0.05))
    sure.fit(FIT_X, plain_targets(), show_progress=False)
    path = folder / f"settings{seed}{kind}.pt"
    sure.save(path)
    data = bytearray(path.read_bytes())
    place = int(torch.randint(len(data), (1,), generator=generator))
    if kind == "flipped":
        data[place] ^= 1 << int(torch.randint(8, (1,), generator=generator))
    elif kind == "cut":
        data = data[:place]
    elif kind == "zeroed":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    else:
        data[place:place] = b"0123456789"
    path.write_bytes(bytes(data))
    std = numbers(sure(FIT_X[:5]).std)
    return outcome(lambda: hs.Uncertain.load(path, body())(FIT_X[:5]), std, 0 * std, room=1e-5)


# Calibrators on top.

TOP = {
    "scale": (lambda p, y: hs.calibrate.VarianceScale.fit(p, y)),
    "affine": (lambda p, y: hs.calibrate.AffineVariance.fit(p, y)),
    "quantiles": (lambda p, y: hs.calibrate.IsotonicQuantiles.fit(p, y)),
    "conformal": (lambda p, y: hs.calibrate.Conformal.fit(p, y)),
}


def run_calibrator(name, noise, seed):
    """95 % intervals cover 91 to 98 % of new targets, after a copy and by rows as well."""
    g = torch.Generator().manual_seed(seed)
    model = body()
    x, new = torch.randn(400, 6, generator=g), torch.randn(2000, 6, generator=g)
    with torch.no_grad():
        y = model(x) + 0.3 * torch.randn(400, 1, generator=g)
        later = model(new) + 0.3 * torch.randn(2000, 1, generator=g)
    sure = hs.Uncertain(model, noise)
    calibrator = TOP[name](sure(x), y)
    p = copy.deepcopy(calibrator)(sure(new))
    low, high = p.interval(0.95)
    covered = float(((later >= low) & (later <= high)).float().mean())
    one, other = calibrator(sure(new[:3])).interval(0.95)
    same = torch.allclose(one, low[:3], rtol=1e-4) and torch.allclose(other, high[:3], rtol=1e-4)
    if not same:
        return "WRONG: rows differ"
    return "right" if 0.91 <= covered <= 0.98 else f"WRONG: covers {covered:.3f}"


# Threads: the numbers of a call alone.

THREADED = {
    "plain": lambda: net(0),
    "counter": lambda: Net(counting, a=net(0), n=lambda: nn.Buffer(torch.zeros(1))),
    "cache": lambda: Net(caching, a=net(0)),
    "steps": lambda: Net(lambda s, x: (4 * s.a(x)).round() + s.a(x), a=net(0)),
    "relu end": lambda: Net(lambda s, x: s.a(x).relu(), a=net(0)),
}


def counting(s, x):
    s.n += 1
    return s.a(x)


def caching(s, x):
    s.last = s.a(x)
    return s.last * 2


def run_threads(name, mode, shared):
    model = THREADED[name]().eval()
    xs = [rows(3, seed=i) for i in range(6)]
    alone = [numbers(hs.Uncertain(model, 0.01)(x).std) for x in xs]
    sure = hs.Uncertain(model, 0.01)
    results = {}

    def work(i):
        wrapper = sure if shared else hs.Uncertain(model, 0.01)
        with {
            "grad": torch.enable_grad,
            "no grad": torch.no_grad,
            "inference": torch.inference_mode,
        }[mode]():
            for _ in range(3):
                try:
                    results[i] = numbers(wrapper(xs[i]).std)
                except Exception as error:
                    results[i] = error
                    return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i in range(6):
        if isinstance(results[i], Exception):
            return f"WRONG: {results[i]!r}"
        if not torch.allclose(results[i], alone[i], rtol=1e-5, atol=1e-12):
            return f"WRONG: {float((results[i] / alone[i] - 1).abs().max()):.3g} off"
    return "right"


CLASSES = [
    "/".join(case)
    for case in itertools.product(LOGITS, FORMS, PROBABILITIES)
    if (case[2] == "binary") == (case[0] == "one")
]


@pytest.mark.parametrize("var", some_fast([0.05, 0.001], 2))
@pytest.mark.parametrize("name", some_fast(CLASSES, 5))
def test_classes(name, var):
    found = run_classes(*name.split("/"), var)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("var", some_fast([0.05, 0.001], 2))
@pytest.mark.parametrize("name", some_fast(MEMBERS, 2))
def test_ensembles(name, var):
    found = run_ensemble(name, var)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("var", some_fast([0.05, 0.001], 2))
@pytest.mark.parametrize("name", some_fast(GAUSSIANS, 2))
def test_variances_of_networks(name, var):
    found = run_gaussian(name, var)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("var", some_fast([0.05, 0.001], 2))
@pytest.mark.parametrize("sizes", some_fast([(3, 4, 5), (2, 9), (6,)], 3))
@pytest.mark.parametrize("pool", POOLS)
def test_graphs_of_other_sizes(pool, sizes, var):
    found = run_graphs(pool, sizes, var)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("name", some_fast(SAME, 2))
def test_odd_targets(name):
    found = run_targets(name)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("count", some_fast([60, 200], 2))
@pytest.mark.parametrize("scale", some_fast([1e4, 1e-3, 1.0], 3))
@pytest.mark.parametrize("kind", some_fast(COVERED, 3))
def test_intervals_cover(kind, scale, count):
    found = run_coverage(kind, scale, count, 0)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("kind", ["flipped", "cut", "zeroed", "inserted"])
@pytest.mark.parametrize("seed", some_fast(range(8), 6))
def test_damaged_settings(seed, kind, tmp_path):
    found = run_bytes(seed, kind, tmp_path)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("seed", some_fast([0, 1], 2))
@pytest.mark.parametrize("noise", some_fast([0.05, 0.001], 2))
@pytest.mark.parametrize("name", TOP)
def test_calibrators(name, noise, seed):
    found = run_calibrator(name, noise, seed)
    assert "WRONG" not in found, found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mode", some_fast(["inference", "grad", "no grad"], 3))
@pytest.mark.parametrize("name", some_fast(THREADED, 2))
def test_threads(name, mode, shared):
    found = run_threads(name, mode, shared)
    assert "WRONG" not in found, found
