"""Where the boxes of a graph go: nothing overlaps, edges point down, the same every time."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from hwqueue.dashboard.runs.layout import BOX_HEIGHT, BOX_WIDTH, Layout, Line, lay_out, layers_of

Graph = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Names in topological order, and edges that go forward."""
    names = tuple(f"s{number}" for number in range(draw(st.integers(1, 14))))
    pairs = list(combinations(names, 2))
    return names, tuple(draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else ())


def row(layout: Layout, layer: int) -> list[str]:
    """The boxes of a layer, from left to right."""
    return [box.name for box in sorted(layout.boxes, key=lambda box: box.x) if box.layer == layer]


def passes(line: Line, y: float) -> float:
    """Where a line is at the height of a layer that it passes; it goes straight down there."""
    [x] = {point[0] for point in line.points if y <= point[1] <= y + BOX_HEIGHT}
    return x


@given(graphs())
def test_nothing_overlaps_and_edges_point_down_beside_boxes(graph: Graph) -> None:
    names, edges = graph
    layout = lay_out(names, edges)
    at = {box.name: box for box in layout.boxes}
    assert set(at) == set(names)
    for one, other in combinations(layout.boxes, 2):
        apart = abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= BOX_HEIGHT
        assert apart, (one, other)
    for box in layout.boxes:
        assert box.x >= 0
        assert box.x + BOX_WIDTH <= layout.width
        assert box.y + BOX_HEIGHT <= layout.height
    for line in layout.lines:
        assert line.points[0][1] == at[line.source].y + BOX_HEIGHT
        assert line.points[-1][1] == at[line.target].y
        assert all(below[1] > above[1] for above, below in pairwise(line.points))
    assert [(line.source, line.target) for line in layout.lines] == list(edges)
    layout = lay_out(*graph)
    layer = {box.name: box.layer for box in layout.boxes}
    for line in layout.lines:
        for box in layout.boxes:
            if layer[line.source] < box.layer < layer[line.target]:
                x = passes(line, box.y)
                assert x < box.x or x > box.x + BOX_WIDTH
    first = lay_out(*graph)
    lay_out.cache_clear()
    assert lay_out(*graph) == first


def test_small_pictures() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c")]
    assert layers_of(["a", "b", "c", "d"], edges) == {"a": 0, "b": 1, "c": 2, "d": 0}
    layout = lay_out(tuple("abxy"), (("a", "y"), ("b", "x")))
    assert row(layout, 0) == ["a", "b"]
    assert row(layout, 1) == ["y", "x"]
    layout = lay_out(tuple("axyz"), (("a", "x"), ("a", "y"), ("a", "z")))
    at = {box.name: box.middle for box in layout.boxes}
    assert at["a"] == at["y"]
    assert at["y"] - at["x"] == at["z"] - at["y"]
    layout = lay_out(("a", "b", "tell"), (("a", "b"),), ("tell",))
    assert {box.name: box.layer for box in layout.boxes} == {"a": 0, "b": 1, "tell": 2}
    line = Line("a", "b", ((10, 0), (30, 40)))
    assert line.path == "M10.0 0.0 C10.0 20.0 30.0 20.0 30.0 40.0"
    assert lay_out((), ()).boxes == ()
