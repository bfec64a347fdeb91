"""Moving objects: the flow against frames rendered apart, seeds, kinds, points on the object."""

import math

import pytest
import torch
from torch.nn import functional as F

from howsure_lab.experiments.motion.data import (
    Counts,
    ObjectPairs,
    as_targets,
    object_points,
    rendered_data,
)
from howsure_lab.experiments.motion.model import STRIDE, FlowNetS, at_points, multi_scale_loss
from howsure_lab.experiments.motion.scenes import (
    KINDS,
    Motion,
    Scenes,
    draw_scenes,
    image,
    moved,
    origin,
    pixels,
    render,
)


def with_motion(scenes, **future):
    """The scenes with another future, one value for all."""
    values = {f: torch.zeros_like(getattr(scenes.future, f)) for f in Motion.__dataclass_fields__}
    for name, value in future.items():
        values[name] = values[name] + torch.tensor(value)
    fields = {f: getattr(scenes, f) for f in Scenes.__dataclass_fields__}
    fields |= {"future": Motion(**values), "camera": torch.zeros_like(scenes.camera)}
    return Scenes(**fields)


@pytest.mark.parametrize("kind", KINDS)
def test_scenes_are_seeded_and_their_images_gray(kind):
    first, second, other = (render(draw_scenes(3, seed, kind), 32) for seed in (7, 7, 8))
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(first.now, other.now)
    assert first.now.shape == (3, 1, 32, 32) and first.flow.shape == (3, 2, 32, 32)
    assert float(first.now.min()) >= 0 and float(first.now.max()) <= 1
    assert set(first.mask.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [-1, 1])
def test_origin_inverts_the_motion(kind, time):
    scenes = draw_scenes(40, 3, kind)
    seen = pixels(40, 8) - scenes.center[:, None, None]
    back = moved(scenes, origin(scenes, seen, time), time)
    # A thousandth of a pixel of a large image.
    torch.testing.assert_close(back, seen, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_flow_leads_to_the_same_point_in_the_future_frame(kind):
    """The brightness of a point stays, so the future frame, read along the flow, is the present."""
    size = 64
    scenes = draw_scenes(6, 11, kind)
    now, _, mask, flow = render(scenes, size)
    place = size * pixels(6, size) + flow.permute(0, 2, 3, 1)
    future = image(scenes, size, 1)
    read = F.grid_sample(future, 2 * place / size - 1, align_corners=False, mode="bicubic")
    # Away from the outline, where the soft edge mixes in the background, and inside the image.
    inner = -F.max_pool2d(-mask, 7, 1, 3) * ((place > 2) & (place < size - 2)).all(3)[:, None]
    assert float(inner.sum()) > 500
    error, still = ((a - now)[inner > 0].abs().mean() for a in (read, future))
    assert float(error) < 0.006 and float(error) < 0.3 * float(still)


def test_known_motions_have_known_flow():
    scenes = draw_scenes(2, 0)
    shifted = render(with_motion(scenes, shift=[0.125, -0.0625]), 64).flow
    torch.testing.assert_close(
        shifted[:, 0], torch.full_like(shifted[:, 0], 8.0), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        shifted[:, 1], torch.full_like(shifted[:, 1], -4.0), atol=1e-4, rtol=0
    )
    turned = render(with_motion(scenes, angle=0.1, zoom=0.05), 64).flow
    seen = 64 * (pixels(2, 64) - scenes.center[:, None, None])
    x, y = seen[..., 0], seen[..., 1]
    grown = math.exp(0.05)
    right = grown * (math.cos(0.1) * x - math.sin(0.1) * y) - x
    down = grown * (math.sin(0.1) * x + math.cos(0.1) * y) - y
    torch.testing.assert_close(turned, torch.stack([right, down], 1), atol=1e-4, rtol=1e-4)


def test_only_predictable_objects_go_on():
    for kind in KINDS:
        scenes = draw_scenes(500, 2, kind)
        both = torch.stack([-scenes.past.shift.flatten(), scenes.future.shift.flatten()])
        correlation = float(torch.corrcoef(both)[0, 1])
        assert correlation > 0.99 if kind == "predictable" else abs(correlation) < 0.15


def test_hidden_objects_look_like_predictable_ones():
    """The same draws give the same frames; only the future differs."""
    calm, hidden, lively = (render(draw_scenes(4, 5, kind), 32) for kind in KINDS[::2] + KINDS[1:2])
    assert torch.equal(calm.now, hidden.now) and torch.equal(calm.past, hidden.past)
    assert not torch.equal(calm.flow, hidden.flow)
    assert not torch.equal(calm.now, lively.now)


def test_parts_of_the_data_are_apart_and_carry_noise():
    data = rendered_data(Counts(20, 6, 4), 32, 0.01)
    assert len(data.train.y) == 20 and len(data.validation.y) == 6
    assert list(data.tests) == list(KINDS) and len(data.tests["hidden"].y) == 4
    clean = rendered_data(Counts(20, 6, 4), 32, 0.0)
    noise = data.train.x - clean.train.x
    assert float(noise[:, :2].std()) == pytest.approx(0.1, rel=0.02)
    assert not noise[:, 2].any()  # a mask is no measurement
    inputs = [data.train.x, data.validation.x, *(pairs.x for pairs in data.tests.values())]
    assert len(torch.cat(inputs).flatten(1).unique(dim=0)) == 20 + 6 + 12


def test_points_are_spread_over_the_object():
    share = torch.zeros(3, 5, 6)
    share[0, 1:4, 2:5] = 1.0
    share[1, 2, 2] = 1.0
    share[2, 4, 5], share[2, 0, 0] = 0.3, 0.1
    points = object_points(share, 4)
    # Of the cells 8 9 10, 14 15 16 and 20 21 22 the first, the last, and two between.
    assert points[0].tolist() == [8, 14, 16, 22]
    assert points[1].tolist() == [14] * 4 and points[2].tolist() == [29] * 4
    with pytest.raises(ValueError, match="empty mask"):
        object_points(torch.zeros(1, 2, 2))


def test_batches_ask_for_the_flow_on_the_object():
    seen = render(draw_scenes(5, 1), 32)
    pairs = ObjectPairs(seen.now.expand(-1, 3, -1, -1), as_targets(seen.flow, seen.mask))
    (x, points), target = pairs.batches(5)[0]
    assert x.shape[0] == 5 and target.shape == (5, 2, points.shape[1], 1)
    # The mean over a cell that lies inside is the plain mean of its pixels.
    inside = pairs.y[:, 2].flatten(1).gather(1, points) == 1
    cells = F.avg_pool2d(seen.flow, STRIDE)
    expected = at_points(cells, points)[:, 0, :, 0][inside]
    torch.testing.assert_close(target[:, 0, :, 0][inside], expected, atol=1e-4, rtol=1e-4)
    shuffled = list(pairs.shuffled(2, 0))
    assert len(shuffled) == 2
    (some, where), flow = shuffled[0]
    index = [int((pairs.x == each).flatten(1).all(1).nonzero()) for each in some]
    assert torch.equal(where, pairs.points[index]) and torch.equal(flow, pairs.target[index])


def test_flow_at_points_is_the_flow_there():
    torch.manual_seed(0)
    model = FlowNetS((4, 4, 4, 4)).eval()
    x, points = torch.rand(2, 3, 32, 48), torch.randint(0, 96, (2, 7))
    whole = model(x)
    assert whole.shape == (2, 2, 8, 12)
    torch.testing.assert_close(model(x, points), at_points(whole, points))
    assert torch.equal(model((x, points)), model(x, points))
    assert [flow.shape[-1] for flow in model.train()(x)] == [12, 6, 3]


def test_the_loss_counts_the_object_alone():
    target = torch.zeros(1, 3, 4, 4)
    target[0, 2, 1, 1] = 1.0
    target[0, 0, 1, 1] = 2.0
    zero = tuple(torch.zeros(1, 2, side, side) for side in (4, 2, 1))
    # An error of 2 in one of two components, in all scales; weights 1, 1/2, 1/4.
    assert float(multi_scale_loss(zero, target)) == pytest.approx(1.75)
    outside = tuple(flow.clone() for flow in zero)
    outside[0][0, :, 3, 3] = 100.0
    assert float(multi_scale_loss(outside, target)) == pytest.approx(1.75)


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="`kind` must be one of"):
        draw_scenes(1, 0, "shy")
    with pytest.raises(ValueError, match="`count` must be at least 1"):
        draw_scenes(0, 0)
    with pytest.raises(ValueError, match="`size` must be at least 16"):
        render(draw_scenes(1, 0), 8)
    with pytest.raises(ValueError, match="`time` must be one of"):
        image(draw_scenes(1, 0), 32, 2)
