"""How true the approximate rules are: `python benchmarks/rule_accuracy.py`.

Softmax, max pool, normalization, attention and recurrent networks against sampling, beside the
simpler rules that others use. One core, a few minutes, reproducible. Writes docs/accuracy.md and
benchmarks/results/rule_accuracy.json; `--quick` takes a tenth of the draws and writes nothing.
"""

import argparse

import torch
from bench import DOCS, RESULTS, markdown, write
from torch import nn
from torch.nn import functional as F

import howsure as hs
from howsure_lab.released import released_rules

REAL = torch.float64


def draws_of(function, means, stds, count, generator, chunk=4000):
    """Mean and variance of `function` of noisy arguments, by sampling in float32."""
    total = square = 0.0
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        noisy = [
            (m + s * torch.randn(size, *m.shape, generator=generator, dtype=REAL)).float()
            for m, s in zip(means, stds, strict=True)
        ]
        values = function(*noisy).double()
        total, square = total + values.sum(0), square + values.square().sum(0)
    mean = total / count
    return mean, square / count - mean.square()


def log_error(var, truth):
    """log of std over true std."""
    return 0.5 * torch.log(var / truth)


def rms(errors):
    return float(torch.cat([e.flatten() for e in errors]).square().mean().sqrt())


def spread(count, scale, generator):
    return scale * (0.5 + torch.rand(count, generator=generator, dtype=REAL))


# Softmax


def delta_softmax(mean, var):
    p = torch.softmax(mean, -1)
    return p, p.square() * (var * (1 - 2 * p) + (p.square() * var).sum(-1, keepdim=True))


def softmax_rules(mean, var):
    released = hs.propagate(lambda x: F.softmax(x, -1), mean, var, rules=released_rules(0.0))
    ours = hs.propagate(lambda x: F.softmax(x, -1), mean, var)
    return {
        "log-normal, the authors' code": (released.mean, released.var),
        "first order (delta)": delta_softmax(mean, var),
        "**howsure**: leave one out": (ours.mean, ours.var),
    }


def softmax_table(share):
    """Rms log error of the std, and total-variation error of the mean, where p > 0.01."""
    table = {}
    for classes, scale in ((10, 0.3), (10, 1), (10, 2), (10, 4), (100, 1), (100, 2), (3, 1)):
        found = {}
        for seed in range(10):
            g = torch.Generator().manual_seed(seed)
            mean = 2 * torch.randn(classes, generator=g, dtype=REAL)
            std = spread((classes,), scale, g)
            count = int(share * (20_000 if classes == 100 else 100_000))
            truth = draws_of(lambda x: x.softmax(-1), [mean], [std], count, g)
            seen = truth[0] > 0.01
            for name, (p, v) in softmax_rules(mean, std.square()).items():
                errors = found.setdefault(name, ([], []))
                errors[0].append(log_error(v, truth[1])[seen])
                errors[1].append((p - truth[0]).abs().sum().reshape(1) / 2)
        for name, (std_errors, mean_errors) in found.items():
            cell = f"{rms(std_errors):.3f} / {torch.cat(mean_errors).mean():.4f}"
            table.setdefault(name, {})[f"K = {classes}, std {scale}"] = cell
    return table


# Max pool


def true_maximum(mean, std):
    """Moments of the largest of independent Gaussians, from its distribution on a fine grid."""
    low, high = (mean - 9 * std).amin(-1), (mean + 9 * std).amax(-1)
    step = torch.linspace(0, 1, 4001, dtype=REAL).reshape(-1, 1)
    x = low + (high - low) * step
    below = (0.5 * torch.erfc((mean - x.unsqueeze(-1)) / std / 2**0.5)).prod(-1)
    first = high - torch.trapezoid(below, x, dim=0)
    second = torch.trapezoid(2 * (high - x) * below, x, dim=0)
    return first, second - (high - first).square()


def pool_rules(mean, var):
    side = int(mean.shape[-1] ** 0.5)
    images = [t.reshape(1, -1, side, side) for t in (mean, var)]
    ours = hs.propagate(lambda x: F.max_pool2d(x, side), *images)
    leader = mean.argmax(-1, keepdim=True)
    rules = {"variance of the largest mean": var.gather(-1, leader).flatten()}
    if side == 2:
        released = hs.propagate(lambda x: F.max_pool2d(x, 2), *images, rules=released_rules(0.0))
        rules["Clark in a tree, the authors' code"] = released.var.flatten()
    rules["**howsure**: `max_pool2d`"] = ours.var.flatten()
    rules["**howsure**: `amax`"] = hs.propagate(lambda x: x.amax(-1), mean, var).var
    return rules


def pool_table(share):
    """Median ratio of the std to the true std, and rms log error, over windows."""
    table = {}
    for size in (4, 9):
        for between in (0.0, 0.5, 2.0):
            g = torch.Generator().manual_seed(0)
            windows = int(share * 2000)
            mean = between * torch.randn(windows, size, generator=g, dtype=REAL)
            std = spread((windows, size), 1.0, g)
            truth = true_maximum(mean, std)[1]
            for name, var in pool_rules(mean, std.square()).items():
                error = log_error(var, truth)
                cell = f"{error.median().exp():.3f} / {rms([error]):.3f}"
                table.setdefault(name, {})[f"k = {size}, spread {between:g}"] = cell
    return table


# Normalization


def plain_scale(mean, var):
    """The usual rule: divide by the std of the mean, as if it were a constant."""
    return var / (mean.var(-1, correction=0, keepdim=True) + 1e-5)


def norm_table(share):
    """Median ratio of the std to the true std (rms log error)."""
    table = {}
    rules = {
        "layer norm, scale of the mean": (F.layer_norm, plain_scale),
        "**howsure**: `layer_norm`": (F.layer_norm, None),
        "**howsure**: `rms_norm`": (F.rms_norm, None),
        "**howsure**: `normalize`": (lambda x, shape: F.normalize(x, dim=-1), None),
    }
    for size in (8, 32, 256):
        for noise in (0.1, 0.5, 1.0, 2.0):
            for name, (norm, other) in rules.items():
                g = torch.Generator().manual_seed(size)
                mean = torch.randn(8, size, generator=g, dtype=REAL)
                std = spread((8, size), noise, g)

                def function(x, norm=norm, size=size):
                    return norm(x, (size,))

                count = int(share * (20_000 if size < 256 else 6_000))
                truth = draws_of(function, [mean], [std], count, g)[1]
                if other is None:
                    var = hs.propagate(function, mean, std.square()).var
                else:
                    var = other(mean, std.square())
                error = log_error(var, truth)
                cell = f"{error.median().exp():.2f} ({rms([error]):.3f})"
                table.setdefault(name, {})[f"n = {size}, noise {noise:g}"] = cell
    return table


# Attention


def written_out(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ value


def attention_table(share, length=16, width=16):
    """Rms log error of the output's std; scores have a std of 1.8 times the noise."""
    table = {}
    for noise in (0.1, 0.3, 0.6, 1.0):
        for name, common in (("", 0.0), (", keys with a common part", 1.5)):
            g = torch.Generator().manual_seed(0)
            shape = (4, length, width)
            means = [1.25 * torch.randn(shape, generator=g, dtype=REAL) for _ in range(3)]
            means[1] = means[1] + common * torch.randn(4, 1, width, generator=g, dtype=REAL)
            stds = [spread(shape, noise, g) for _ in range(3)]
            attend = F.scaled_dot_product_attention
            truth = draws_of(attend, means, stds, int(share * 20_000), g, chunk=1000)[1]
            variances = tuple(std.square() for std in stds)
            for rule, function in (("independent weights", written_out), ("**howsure**", attend)):
                var = hs.propagate(function, tuple(means), variances).var
                cell = f"{rms([log_error(var, truth)]):.3f}"
                table.setdefault(rule + name, {})[f"noise {noise:g}"] = cell
    return table


# Recurrent networks


def recurrent_table(share, networks=6, steps=15, hidden=16):
    """Median ratio of the last output's std to the true std [5 %, 95 %], weights times 2."""
    table = {}
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for noise in (0.1, 0.5):
            ratios = []
            for seed in range(networks):
                torch.manual_seed(seed)
                model = kind(8, hidden).eval().requires_grad_(False)
                for parameter in model.parameters():
                    parameter.mul_(2)
                x = torch.randn(steps, 1, 8)
                draws = model(x + noise * torch.randn(steps, int(share * 5000), 8))[0][-1]
                out = hs.propagate(model, x, noise**2).var[0][-1, 0]
                ratios.append((out / draws.var(0)).sqrt())
            low, middle, high = torch.cat(ratios).quantile(torch.tensor([0.05, 0.5, 0.95]))
            cell = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
            table.setdefault(f"**howsure**: {kind.__name__}", {})[f"noise {noise:g}"] = cell
    return table


SECTIONS = {
    "Softmax": (
        softmax_table,
        "Logits with means of std 2 and independent noise; ten draws of the means. Entries: rms "
        "log error of the std / total-variation error of the mean, where p exceeds 0.01.",
    ),
    "Max pool": (
        pool_table,
        "2000 windows of k independent elements, with noise of std 0.5 to 1.5 and means of the "
        "given spread. Entries: median ratio of the std to the true std / rms log error. Nine "
        "elements with equal means are the hardest case.",
    ),
    "Normalization": (
        norm_table,
        "Rows of n elements of unit spread. Entries: median ratio of the std to the true std (rms "
        "log error). What matters is that the statistic by which the layer divides contains the "
        "noise.",
    ),
    "Attention": (
        attention_table,
        "16 queries and keys of width 16, independent noise in queries, keys and values. Entries: "
        "rms log error of the output's std. A part that all keys share moves all scores of a query "
        "alike, which the softmax does not see.",
    ),
    "Recurrent networks": (
        recurrent_table,
        "16 hidden units, noise at each of 15 steps, six random networks with twice torch's first "
        "weights. Entries: median ratio of the std to the true std [5 %, 95 %]. The gates share "
        "their inputs, which the rules take as independent.",
    ),
}


PREFACE = """# How true the rules are

Most rules are exact for independent Gaussian inputs, and tests hold every rule to its stated
bound. The rules on this page are approximations; here is how good they are, against sampling, on
the inputs that each of them assumes. A rms log error of 0.05 means that the standard deviation is
5 % off. What *correlated* inputs add is another matter, see [concepts](concepts.md).

Generated by `python benchmarks/rule_accuracy.py` (one core, fixed seeds).
"""


def section(title, table):
    """A part of the page: what was measured, and its table."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    rows = [[rule, *(row.get(column, "") for column in columns)] for rule, row in table.items()]
    return f"\n## {title}\n\n{SECTIONS[title][1]}\n\n{markdown(['rule', *columns], rows)}\n"


def page(tables):
    """The whole page."""
    return PREFACE + "".join(section(title, table) for title, table in tables.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws, no files")
    share = 0.1 if parser.parse_args().quick else 1.0
    torch.set_num_threads(1)
    tables = {}
    with torch.no_grad():
        for title, (make, _) in SECTIONS.items():
            tables[title] = make(share)
            print(section(title, tables[title]), flush=True)
    if share == 1.0:
        write(RESULTS / "rule_accuracy.json", {"tables": tables})
        (DOCS / "accuracy.md").write_text(page(tables))


if __name__ == "__main__":
    main()
