"""Draws docs/img/house.svg: the rooms of `src/howsure`, floor by floor, and what they import.

Run from the repository: `python docs/make_house.py`. It needs Python alone: the floors are those of
tests/house.py, and the imports are read from the files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from itertools import combinations, pairwise
from math import fsum  # the same digits in every version of Python
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "howsure"
ORDER = ROOT / "tests" / "house.py"
PICTURE = ROOT / "docs" / "img" / "house.svg"

Imports = dict[str, set[str]]
Place = tuple[float, float]
Places = dict[str, Place]
Route = tuple[str, ...]  # from a room through passages to another

# In pixels. The house stands right of the names of its floors.
WIDTH, LEFT, TOP, FLOOR = 980, 250, 84, 66
ROOM, GAP = (108, 34), 26
ROUNDS, TRIES = 30, 200  # of moving towards one's links, and of starts; more look the same


def layers() -> dict[str, list[str]]:
    """The floors and their rooms, from the foundation up, as the test has them."""
    for node in ast.parse(ORDER.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{ORDER} has no LAYERS.")


def imports_of(room: str) -> set[str]:
    """The rooms that a room imports when it runs; what is for types alone does not count."""
    folder = PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]
    return {other for file in files for other in _imported(ast.parse(file.read_text()))} - {room}


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "howsure":
            parts = str(node.module).split(".")[1:]
            yield from parts[:1] or [alias.name for alias in node.names]
        yield from _imported(node)


def direct(imports: Imports) -> Imports:
    """The imports without those that follow from others: enough to see what depends on what."""

    def below(room: str) -> set[str]:
        return imports[room].union(*(below(other) for other in imports[room]))

    return {
        room: {o for o in others if not any(o in below(third) for third in others - {o})}
        for room, others in imports.items()
    }


def with_passages(floors: list[list[str]], links: Imports) -> tuple[list[list[str]], list[Route]]:
    """The floors with a passage wherever an arrow crosses one, and every arrow's way down."""
    level = {room: k for k, floor in enumerate(floors) for room in floor}
    wide, routes = [list(floor) for floor in floors], []
    for room in links:
        for other in sorted(links[room], key=lambda each: (level[each], each)):
            crossed = range(level[room] - 1, level[other], -1)
            names = [f"{room} to {other} {k}" for k in crossed]
            for k, name in zip(crossed, names, strict=True):
                wide[k].append(name)
            routes.append((room, *names, other))
    return wide, routes


def places(floors: list[list[str]], routes: list[Route], rooms: set[str]) -> Places:
    """The middle of every room and passage; of several arrangements the tidiest."""
    tries = (_arranged(floors, routes, rooms, Random(seed)) for seed in range(TRIES))
    x = min(tries, key=lambda x: _untidiness(x, routes, floors))
    height = TOP + FLOOR * len(floors)
    return {n: (x[n], height - FLOOR * (k + 0.5)) for k, floor in enumerate(floors) for n in floor}


def _arranged(
    floors: list[list[str]], routes: list[Route], rooms: set[str], random: Random
) -> dict[str, float]:
    """Everything near what it is linked with, from a random start; nothing overlaps."""
    beside: dict[str, list[str]] = {name: [] for floor in floors for name in floor}
    for one, other in _steps(routes):
        beside[one].append(other)
        beside[other].append(one)
    x = {name: LEFT + random.random() * (WIDTH - LEFT) for name in beside}
    for _ in range(ROUNDS):
        for floor in floors:
            wanted = {n: fsum(x[o] for o in beside[n]) / max(len(beside[n]), 1) for n in floor}
            x.update(_side_by_side(wanted, [name for name in floor if name in rooms]))
    return x


def _untidiness(x: dict[str, float], routes: list[Route], floors: list[list[str]]) -> float:
    """How far arrows go sideways, in pixels, and how often they cross, each as bad as a room."""
    level = {name: k for k, floor in enumerate(floors) for name in floor}
    steps = [(level[a], x[a], x[b]) for a, b in _steps(routes) if level[a] != level[b]]
    crossings = sum(
        k == other and (a - c) * (b - d) < 0 for (k, a, b), (other, c, d) in combinations(steps, 2)
    )
    return fsum(abs(a - b) for _, a, b in steps) + ROOM[0] * crossings


def _steps(routes: list[Route]) -> list[tuple[str, str]]:
    return [step for route in routes for step in pairwise(route)]


def _side_by_side(wanted: dict[str, float], rooms: list[str]) -> dict[str, float]:
    """The nearest places to the wanted ones that do not overlap; rooms keep their order."""
    sorted_rooms = sorted(wanted[room] for room in rooms)
    wanted = {**wanted, **dict(zip(rooms, sorted_rooms, strict=True))}
    order = sorted(wanted, key=lambda name: wanted[name])
    halves = [ROOM[0] / 2 if name in rooms else 0 for name in order]
    offsets = [0.0]
    for one, other in pairwise(halves):
        offsets.append(offsets[-1] + one + GAP + other)
    free = [wanted[name] - offset for name, offset in zip(order, offsets, strict=True)]
    low, high = LEFT + 20 + halves[0], WIDTH - 32 - halves[-1] - offsets[-1]
    settled = [min(max(value, low), high) for value in _increasing(free)]
    return {n: value + offset for n, value, offset in zip(order, settled, offsets, strict=True)}


def _increasing(values: list[float]) -> list[float]:
    """The nearest values, in the least-squares sense, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pool = (value, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, count = pools.pop()
            total = count + pool[1]
            pool = ((mean * count + pool[0] * pool[1]) / total, total)
        pools.append(pool)
    return [mean for mean, count in pools for _ in range(count)]


def svg(floors: dict[str, list[str]], imports: Imports) -> str:
    """The picture."""
    wide, routes = with_passages(list(floors.values()), direct(imports))
    at = places(wide, routes, set(imports))
    height = TOP + FLOOR * len(floors)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 40}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" '
        'aria-label="The rooms of howsure and what they import">',
        _STYLE,
        _roof(),
        *(_floor(k, name, len(floors)) for k, name in enumerate(floors)),
        *(_arrow([at[name] for name in route]) for route in routes),
        *(_room(name, at[name]) for name in imports),
        f'<text class="note" x="{LEFT}" y="{height + 26}">An arrow leads from a room to one that '
        "it imports. Imports that follow from others are left out.</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


_STYLE = """<style>
.page { fill: #ffffff } .odd { fill: #eef3f8 } .even { fill: #f8fafc } .roof { fill: #d9e4ee }
.floor { fill: #475569 } .note { fill: #64748b; font-size: 12.5px }
.room { fill: #ffffff; stroke: #0072b2; stroke-width: 1.4 }
.name { fill: #0f3a57; font-weight: 600; text-anchor: middle }
.arrow { fill: none; stroke: #d55e00; stroke-width: 1.5; stroke-opacity: 0.75 }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="#d55e00"/></marker></defs>
<rect class="page" width="100%" height="100%"/>"""


def _roof() -> str:
    left, right = LEFT, WIDTH - 12
    top = (left + right) / 2
    return f'<path class="roof" d="M{left - 10} {TOP} L{top} 12 L{right + 10} {TOP} z"/>'


def _floor(k: int, name: str, count: int) -> str:
    y = TOP + FLOOR * (count - 1 - k)
    shade = "odd" if k % 2 else "even"
    return (
        f'<rect class="{shade}" x="{LEFT}" y="{y}" width="{WIDTH - 12 - LEFT}" height="{FLOOR}"/>'
        f'<text class="floor" x="{LEFT - 14}" y="{y + FLOOR / 2 + 5}" text-anchor="end">'
        f"{escape(name)}</text>"
    )


def _room(name: str, place: Place) -> str:
    (width, height), (x, y) = ROOM, place
    return (
        f'<rect class="room" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width}" '
        f'height="{height}" rx="7"/><text class="name" x="{x:.1f}" y="{y + 5:.1f}">'
        f"{escape(name)}</text>"
    )


def _arrow(points: list[Place]) -> str:
    """A curve from the first room down to the last, straight through every floor between them."""
    (x1, y1), (x2, y2) = points[0], points[-1]
    if y1 == y2:
        return _drawn(_within_a_floor(x1, x2, y1))
    curve, half = f"M{x1:.1f} {y1 + ROOM[1] / 2}", ROOM[1] / 2
    for (xa, ya), (xb, yb) in pairwise(points):
        top, bottom = ya + half, yb - half
        bend = 0.6 * (bottom - top)
        curve += f" L{xa:.1f} {top} C{xa:.1f} {top + bend:.1f} {xb:.1f} {bottom - bend:.1f}"
        curve += f" {xb:.1f} {bottom}"
    return _drawn(curve)


def _within_a_floor(x1: float, x2: float, y: float) -> str:
    """Straight to the next room, over the heads of others to one further away."""
    width, height = ROOM
    side = 1 if x2 > x1 else -1
    if abs(x2 - x1) < 2 * width:
        return f"M{x1 + side * width / 2:.1f} {y} L{x2 - side * width / 2:.1f} {y}"
    top = y - height / 2
    return f"M{x1:.1f} {top} C{x1:.1f} {top - 18} {x2:.1f} {top - 18} {x2:.1f} {top}"


def _drawn(curve: str) -> str:
    return f'<path class="arrow" marker-end="url(#tip)" d="{curve}"/>'


def house() -> str:
    """The picture of the package as it is now."""
    floors = layers()
    return svg(floors, {room: imports_of(room) for floor in floors.values() for room in floor})


if __name__ == "__main__":
    PICTURE.write_text(house())
