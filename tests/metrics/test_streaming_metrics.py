"""Laws of every metric: splits, merges, masks, weights, order, saved states."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_data import DATA, NAN, OPTIONS, PER_ROW, N, detections, errors, gaussians, variances

import howsure.metrics as M

each_metric = pytest.mark.parametrize("metric", DATA, ids=lambda metric: metric.__name__)
with_options = pytest.mark.parametrize(
    ("metric", "options"),
    [*((metric, {}) for metric in DATA), *OPTIONS.items()],
    ids=lambda value: getattr(value, "__name__", "options" if value else "defaults"),
)


def _draw(metric, seed=0):
    return DATA[metric](torch.Generator().manual_seed(seed))


def _streamed(metric, *batches, mask=None, **options):
    """The stream of a metric after these batches."""
    running = metric.stream(**options)
    for data in batches:
        running.update(*data, **({} if mask is None else {"mask": mask}))
    return running


def _assert_close(result, expected):
    pairs = [(result, expected)]
    if isinstance(expected, tuple):
        pairs = list(zip(result, expected, strict=True))
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_every_metric_is_in_the_table():
    assert set(DATA) == {m for m in vars(M).values() if isinstance(m, M.Metric)}


@with_options
@settings(deadline=None, max_examples=8, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, N), max_size=6),
    workers=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_split_over_any_workers_gives_the_same(metric, options, seed, cuts, workers, order):
    data = _draw(metric, seed)
    pieces = [slice(a, b) for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), N], strict=True)]
    pieces = [piece for piece in pieces if piece.start < piece.stop]
    order.shuffle(pieces)
    streams = [metric.stream(**options) for _ in range(workers)]
    for k, piece in enumerate(pieces):
        streams[k % workers].update(*(x[piece] for x in data))
    for other in streams[1:]:
        streams[0].merge_state(other)
    _assert_close(streams[0].compute(), metric(*data, **options))


@each_metric
def test_order_does_not_matter(metric):
    data = _draw(metric)
    shuffle = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    _assert_close(metric(*(x[shuffle] for x in data)), metric(*data))


@each_metric
def test_masked_entries_do_not_count_and_may_be_nan(metric):
    data = _draw(metric)
    mask = torch.arange(N) % 3 > 0
    spoilt = [x.clone() for x in data]
    for x in spoilt:
        x[~mask] = NAN if x.is_floating_point() else 1
    # A mask repeats where it has size 1.
    full = mask if metric in PER_ROW else mask.unsqueeze(1)
    expected = metric(*(x[mask] for x in data))
    _assert_close(metric(*spoilt, mask=full), expected)
    _assert_close(_streamed(metric, spoilt, mask=full).compute(), expected)


def _takes_weight(metric):
    return "weight" in inspect.signature(metric).parameters


@pytest.mark.parametrize("metric", [*filter(_takes_weight, DATA)], ids=lambda m: m.__name__)
def test_a_weight_is_a_number_of_copies(metric):
    data = _draw(metric)
    copies = torch.arange(N) % 4
    spoilt = [x.clone() for x in data]
    for x in spoilt:
        x[copies == 0] = NAN if x.is_floating_point() else 1
    weight = copies if metric in PER_ROW else copies.unsqueeze(1)
    expected = metric(*(x.repeat_interleave(copies, 0) for x in data))
    _assert_close(metric(*spoilt, weight=weight), expected)


def test_mask_and_weight_act_together():
    mean, target = torch.tensor([1.0, 2.0, 5.0, NAN]), torch.zeros(4)
    mask, weight = torch.tensor([True, True, False, True]), torch.tensor([3.0, 1.0, 9.0, 0.0])
    assert M.mae(mean, target, mask=mask, weight=weight).item() == (3 * 1 + 1 * 2) / 4


@pytest.mark.parametrize(
    "metric",
    [m for m, draw in DATA.items() if draw in (gaussians, variances, errors, detections)],
    ids=lambda metric: metric.__name__,
)
def test_any_shape_is_the_same_as_flat(metric):
    data = _draw(metric)
    _assert_close(metric(*(x.reshape(4, 3, 2, 4) for x in data)), metric(*map(torch.flatten, data)))


@each_metric
def test_float32_data_are_computed_in_float64(metric):
    rounded = [x.float() if x.is_floating_point() else x for x in _draw(metric)]
    widened = [x.double() if x.is_floating_point() else x for x in rounded]
    result = metric(*rounded)
    for value in result if isinstance(result, tuple) else [result]:
        assert value.dtype == torch.float64
    _assert_close(result, metric(*widened))


@each_metric
def test_a_saved_state_goes_on(metric, tmp_path):
    data = _draw(metric)
    options = OPTIONS.get(metric, {})
    first = _streamed(metric, [x[:20] for x in data], **options)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert not any(x.requires_grad for x in state["rows"])
    resumed = metric.stream(**options)
    resumed.load_state_dict(state)
    resumed.update(*(x[20:] for x in data))
    _assert_close(resumed.compute(), metric(*data, **options))


@each_metric
def test_a_stream_can_be_sent_to_another_process(metric):
    data = _draw(metric)
    sent = pickle.loads(pickle.dumps(_streamed(metric, [x[:20] for x in data])))
    rest = _streamed(metric, [x[20:] for x in data])
    rest.merge_state(sent)
    _assert_close(rest.compute(), metric(*data))


@each_metric
def test_inputs_and_other_streams_stay_unchanged(metric):
    data = _draw(metric)
    before = [x.clone() for x in data]
    one, other = _streamed(metric, data), _streamed(metric, data)
    state = [row.clone() for row in other.rows]
    one.merge_state(other)
    one.update(*data)
    one.compute()
    assert all(torch.equal(a, b) for a, b in zip(before, data, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(state, other.rows, strict=True))


@each_metric
def test_a_buffer_may_be_used_again(metric):
    data = _draw(metric)
    buffers = [torch.empty_like(x[:24]) for x in data]
    running = metric.stream()
    for half in (slice(0, 24), slice(24, N)):
        for buffer, x in zip(buffers, data, strict=True):
            buffer.copy_(x[half])
        running.update(*buffers)
    _assert_close(running.compute(), metric(*data))


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_empty_streams_merge_and_refuse_to_compute():
    empty, full = M.rmse.stream(), _streamed(M.rmse, (torch.ones(3), torch.zeros(3)))
    full.merge_state(M.rmse.stream())
    empty.merge_state(full)
    assert full.compute() == empty.compute() == 1
    with pytest.raises(ValueError, match="`rmse` has seen no data yet"):
        M.rmse.stream().compute()


def test_a_stream_keeps_no_graph():
    mean = torch.ones(3, requires_grad=True)
    for metric in (M.rmse, M.rank_correlation):
        running = _streamed(metric, (mean, torch.arange(3.0)))
        assert not any(x.requires_grad for x in running.rows)


def test_sums_have_a_gradient_and_orders_none():
    mean = torch.arange(3.0, requires_grad=True)
    assert M.rmse(mean, torch.ones(3)).requires_grad
    assert not M.ence(mean, torch.ones(3), torch.ones(3), bins=1).requires_grad


def test_different_options_do_not_merge():
    with pytest.raises(ValueError, match="cannot be merged"):
        M.ece.stream(bins=10).merge_state(M.ece.stream(bins=15))
    with pytest.raises(ValueError, match="cannot be merged"):
        M.rmse.stream().merge_state(M.mae.stream())


def test_levels_may_be_a_tensor():
    data = _draw(M.calibration_curve)
    streams = [M.calibration_curve.stream(levels=torch.tensor([0.25, 0.5])) for _ in range(2)]
    streams[0].update(*data)
    streams[0].merge_state(streams[1])
    _assert_close(streams[0].compute(), M.calibration_curve(*data, levels=(0.25, 0.5)))


@pytest.mark.parametrize(
    "metric", [M.one_hot_nll, M.kl_of_fitted_gaussians, M.ace], ids=lambda m: m.__name__
)
def test_different_widths_do_not_merge(metric):
    data = _draw(metric)
    options = {"reduction": "none"} if metric is M.one_hot_nll else {}
    wide = [torch.cat([x, 0 * x + 1e-3], 1) if x.dim() > 1 else x for x in data]
    running = _streamed(metric, data, wide, **options)
    with pytest.raises(ValueError, match="cannot be merged"):
        running.compute()


def test_options_are_checked_when_the_stream_begins():
    with pytest.raises(TypeError, match=r"`nll` has no option `bins`; its options are .*'floor'"):
        M.nll.stream(bins=3)
    with pytest.raises(TypeError, match="has no option `weight`"):
        M.nll.stream(weight=torch.ones(3))


def test_a_kept_metric_takes_no_weight():
    with pytest.raises(TypeError, match="weight"):
        M.ence.stream().update(*_draw(M.ence), weight=torch.ones(N, 2))


def test_many_small_updates_are_joined_at_the_end():
    """Two thousand updates of a metric that keeps its values."""
    running = M.rank_correlation.stream()
    values = torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0)).double()
    for pair in values.split(5):
        running.update(pair[:, 0], pair[:, 1])
    _assert_close(running.compute(), M.rank_correlation(values[:, 0], values[:, 1]))


def test_metrics_read_like_functions():
    assert str(inspect.signature(M.ause)) in repr(M.ause)
    assert inspect.signature(M.nll).return_annotation == "Tensor"
    assert inspect.signature(M.calibration_curve).return_annotation == "CalibrationCurve"
    assert M.nll.__doc__ is not None and "1/2 log var" in M.nll.__doc__
