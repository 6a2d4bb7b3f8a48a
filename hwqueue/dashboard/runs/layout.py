"""Where the boxes of a graph of steps go: layers by depth, few crossings, the same every time.

The method of Sugiyama, Tagawa and Toda (1981). A box is below all of its parents. An edge that
passes layers gets a point in each, so that it runs between the boxes. Sweeps put each layer in the
order of the mean position of its neighbours, and keep the order with the fewest crossings. Then
boxes move to the mean of their neighbours as far as those beside them let them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

BOX_WIDTH, BOX_HEIGHT = 200, 56
GAP_X, GAP_Y = 32, 44
MARGIN = 12
_SWEEPS = 12
_LANE = 20  # the width that an edge has where it passes a layer

# A box by its name, or the point at which the edge of two boxes passes a layer.
Place = str | tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Box:
    """A step on the picture: layer and column from 0, its left upper corner in pixels."""

    name: str
    layer: int
    column: int
    x: float
    y: float

    @property
    def middle(self) -> float:
        """The middle, from the left."""
        return self.x + BOX_WIDTH / 2


@dataclass(frozen=True, slots=True)
class Line:
    """An edge: its ends, and the points that it goes through, from above to below."""

    source: str
    target: str
    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """The data of an SVG path: a curve that leaves and arrives straight down."""
        [(x, y), *rest] = self.points
        parts = [f"M{x:.1f} {y:.1f}"]
        for to_x, to_y in rest:
            half = (y + to_y) / 2
            parts.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
            x, y = to_x, to_y
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture of a graph; boxes in the order of layers and columns."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def layers_of(
    names: Sequence[str], edges: Iterable[tuple[str, str]], at_end: Collection[str] = ()
) -> dict[str, int]:
    """The layer of each step: 0 without parents, else one below its lowest parent.

    Args: As for `lay_out`.
    """
    parents = defaultdict(list)
    for source, target in edges:
        parents[target].append(source)
    layers: dict[str, int] = {}
    for name in names:
        layers[name] = max((layers[parent] + 1 for parent in parents[name]), default=0)
    last = max((layer for name, layer in layers.items() if name not in at_end), default=-1)
    return layers | dict.fromkeys(at_end, last + 1)


@lru_cache(maxsize=128)
def lay_out(
    names: tuple[str, ...], edges: tuple[tuple[str, str], ...], at_end: tuple[str, ...] = ()
) -> Layout:
    """Where each step and each edge goes; the last graphs are kept, since their pages come again.

    Args:
        names: In topological order.
        edges: (parent, child), each once.
        at_end: Steps that run when all others have ended: a layer of their own below the others.
    """
    layers = layers_of(names, edges, at_end)
    rows, links = _with_points(names, edges, layers)
    _order(rows, links)
    columns = _columns(rows, links)
    left = min((middle - _width(place) / 2 for place, middle in columns.items()), default=0.0)
    right = max((middle + _width(place) / 2 for place, middle in columns.items()), default=0.0)
    shift = MARGIN - left
    boxes = tuple(
        Box(place, layer, column, columns[place] - BOX_WIDTH / 2 + shift, _top(layer))
        for layer, row in enumerate(rows)
        for column, place in enumerate(place for place in row if isinstance(place, str))
    )
    return Layout(
        right - left + 2 * MARGIN,
        len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN if rows else 0,
        boxes,
        tuple(
            _line(edge, layers, {place: middle + shift for place, middle in columns.items()})
            for edge in edges
        ),
    )


def _top(layer: int) -> float:
    return MARGIN + layer * (BOX_HEIGHT + GAP_Y)


def _width(place: Place) -> float:
    return BOX_WIDTH if isinstance(place, str) else _LANE


def _with_points(
    names: Sequence[str], edges: Sequence[tuple[str, str]], layers: Mapping[str, int]
) -> tuple[list[list[Place]], list[tuple[Place, Place]]]:
    """The layers with the points of edges that pass them, and links that pass none."""
    rows: list[list[Place]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in names:
        rows[layers[name]].append(name)
    links: list[tuple[Place, Place]] = []
    for source, target in edges:
        before: Place = source
        for layer in range(layers[source] + 1, layers[target]):
            point = (source, target, layer)
            rows[layer].append(point)
            links.append((before, point))
            before = point
        links.append((before, target))
    return rows, links


def _order(rows: list[list[Place]], links: Sequence[tuple[Place, Place]]) -> None:
    """Put each layer in the order that crosses the fewest links of all orders tried."""
    above, below = defaultdict(list), defaultdict(list)
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        neighbours = above if down else below
        place = {each: index for row in rows for index, each in enumerate(row)}
        for row in rows if down else reversed(rows):
            means = {each: _mean([place[one] for one in neighbours[each]], at) for at, each in enumerate(row)}
            row.sort(key=means.__getitem__)
            place.update({each: index for index, each in enumerate(row)})
        crossed = _crossings(rows, below)
        if crossed < fewest:
            best, fewest = [list(row) for row in rows], crossed
    rows[:] = best


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(rows: Sequence[Sequence[Place]], below: Mapping[Place, Sequence[Place]]) -> int:
    """How many links cross between neighbouring layers."""
    found = 0
    for upper, lower in itertools.pairwise(rows):
        place = {each: index for index, each in enumerate(lower)}
        seen: list[int] = []
        for each in upper:
            ends = sorted(place[one] for one in below.get(each, ()))
            found += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return found


def _columns(rows: Sequence[Sequence[Place]], links: Sequence[tuple[Place, Place]]) -> dict[Place, float]:
    """The middle of each place, from the left; the order of a layer stays, and nothing overlaps."""
    near = defaultdict(list)
    for source, target in links:
        near[source].append(target)
        near[target].append(source)
    middles: dict[Place, float] = {}
    for row in rows:
        left = -sum(_width(place) + GAP_X for place in row) / 2
        for place in row:
            middles[place] = left + _width(place) / 2
            left += _width(place) + GAP_X
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([middles[each] for each in near[place]], middles[place]) for place in row]
            for place, middle in zip(row, _apart(row, wanted), strict=True):
                middles[place] = middle
    return middles


def _apart(row: Sequence[Place], wanted: Sequence[float]) -> list[float]:
    """The places of a layer as near to what is wanted as they can be without an overlap.

    Places that want the same room become a block that stands at the mean of their wishes: the
    least sum of squared distances (pool adjacent violators).
    """
    offsets, offset = [], 0.0
    for index, place in enumerate(row):
        if index:
            offset += (_width(row[index - 1]) + _width(place)) / 2 + GAP_X
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # mean wish, how many
    for wish, offset in zip(wanted, offsets, strict=True):
        mean, count = wish - offset, 1
        while blocks and blocks[-1][0] >= mean:
            before, held = blocks.pop()
            mean = (mean * count + before * held) / (count + held)
            count += held
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _line(edge: tuple[str, str], layers: Mapping[str, int], middles: Mapping[Place, float]) -> Line:
    source, target = edge
    points = [(middles[source], _top(layers[source]) + BOX_HEIGHT)]
    for layer in range(layers[source] + 1, layers[target]):
        x = middles[source, target, layer]
        points += [(x, _top(layer)), (x, _top(layer) + BOX_HEIGHT)]
    points.append((middles[target], _top(layers[target])))
    return Line(source, target, tuple(points))
