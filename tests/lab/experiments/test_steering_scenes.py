"""The road renderer: geometry against a camera written apart, seeds, conditions."""

import math

import pytest
import torch

from howsure_lab.experiments.steering.scenes import CONDITIONS, draw_scenes, render, steering


def plain(count=1, **changes):
    """Scenes without anything that hides the road, changed as asked."""
    scenes = draw_scenes(count, 0)
    values = {name: getattr(scenes, name).clone() for name in scenes.__dataclass_fields__}
    calm = {"offset": 0, "heading": 0, "curvature": 0, "pitch": 0, "gain": 1, "gamma": 1}
    calm |= {"slant": 0, "glare": 0, "shadow": 0, "contrast": 1, "paint": 1, "blur": 0.01}
    calm |= {"vehicle_depth": 0, **changes}
    for name, value in calm.items():
        values[name] = torch.full_like(values[name], value)
    return type(scenes)(**values)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("size", [16, 64])
def test_images_are_gray_and_seeded(condition, size):
    first, second = (render(draw_scenes(3, 7, condition), size) for _ in range(2))
    assert first.shape == (3, 1, size, size) and first.dtype == torch.float32
    assert bool((first >= 0).all()) and bool((first <= 1).all())
    assert torch.equal(first, second)
    assert not torch.equal(first, render(draw_scenes(3, 8, condition), size))


def test_a_scene_looks_the_same_alone_and_in_a_batch():
    scenes = draw_scenes(5, 1)
    together = render(scenes, 32)
    alone = torch.cat([render(scenes[i : i + 1], 32) for i in range(5)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("curvature, offset", [(0.0, 0.0), (0.02, 0.3), (-0.02, -0.3)])
def test_the_right_line_is_where_a_pinhole_camera_sees_it(curvature, offset):
    """At the row of depth z the line x = center(z) + 1.8 m falls on u = f x / z."""
    size, focal, height, horizon = 200, 0.7, 1.5, 0.38
    image = render(plain(curvature=curvature, offset=offset), size)[0, 0]
    for row in (120, 130, 140):
        depth = height * focal / ((row + 0.5) / size - horizon)
        x = offset + 0.5 * curvature * depth**2 + 1.8
        column = (focal * x / depth + 0.5) * size
        near = image[row, int(column) - 12 : int(column) + 13]
        assert abs(int(near.argmax()) - 12) <= 1


def test_steering_follows_pure_pursuit():
    scenes = draw_scenes(20, 3)
    for i in range(20):
        ahead = float(scenes.offset[i]) + 12 * float(scenes.heading[i])
        ahead += 72 * float(scenes.curvature[i])
        expected = 5 * math.atan(2 * 2.7 * ahead / 144)
        assert float(steering(scenes)[i]) == pytest.approx(expected, abs=1e-5)


def test_mirrored_roads_steer_the_other_way():
    right, left = plain(curvature=0.02, offset=0.2), plain(curvature=-0.02, offset=-0.2)
    torch.testing.assert_close(steering(right), -steering(left))


def test_conditions_do_what_they_say():
    clear, night, fog, bare = (render(draw_scenes(64, 5, c), 64) for c in CONDITIONS)
    assert float(night.mean()) < 0.4 * float(clear.mean())
    # Fog takes the contrast of what is far: along the rows just below the horizon.
    assert float(fog[:, :, 27:30].std(3).mean()) < 0.7 * float(clear[:, :, 27:30].std(3).mean())
    painted, unpainted = render(plain(paint=1), 64), render(plain(paint=0), 64)
    assert float((painted - unpainted).max()) > 0.2
    assert float((clear - bare).abs().max()) > 0.1


def test_vehicles_hide_the_road():
    free, hidden = render(plain(), 64), render(plain(vehicle_depth=8.0), 64)
    changed = (free - hidden).abs() > 0.05
    assert 0.005 < float(changed.float().mean()) < 0.2


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="`condition` must be one of"):
        draw_scenes(1, 0, "snow")
    with pytest.raises(ValueError, match="`count` must be at least 1"):
        draw_scenes(0, 0)
    with pytest.raises(ValueError, match="`size` must be at least 16"):
        render(draw_scenes(1, 0), 8)
