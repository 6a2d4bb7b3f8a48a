"""How the fleet filled, and what waited: the charts and the page."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.charts import cut
from hwqueue.dashboard.history import all_gpus, gpu_charts, waits_chart
from hwqueue.types import FleetSample, Gpu, Minute, NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.test_pages import check

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def sample(minute: int, name: str, used: float = 0, present: float = 0, waiting: float = 0) -> FleetSample:
    return FleetSample(at=BEGAN + minute * MINUTE, name=name, used=used, present=present, waiting=waiting)


def test_gpus_by_model() -> None:
    """What nobody has or wants has no chart; what is gone is nothing; all of them are one chart, too."""
    samples = [
        sample(0, "A100", 1, 4),
        sample(0, "", 0, 0, 2),
        sample(1, "A100", 4, 4, 3),
        sample(1, "T4", 0, 0),
    ]
    charts = gpu_charts(samples)
    assert [(chart.title, [values for _, values in chart.rows]) for chart in charts] == [
        ("A100", [[1, 3, 0], [4, 0, 3]]),
        ("any model", [[0, 0, 2], [0, 0, 0]]),
    ]
    assert charts[0].says == "4 in use, 0 free, 3 asked for"
    together = all_gpus(samples)
    assert together is not None
    assert [values for _, values in together.rows] == [[1, 3, 2], [4, 0, 3]]
    assert gpu_charts([]) == []
    assert all_gpus([sample(0, "")]) is None


def test_what_waits() -> None:
    """The four reasons that most wait for, and all others; a reason without words is named."""
    reasons = [
        sample(0, name, waiting=9 - n) for n, name in enumerate(("room", "limit", "odd", "team", "signal"))
    ]
    chart = waits_chart([*reasons, sample(0, "", waiting=sum(each.waiting for each in reasons))])
    assert chart is not None
    assert [label for label, _ in chart.lines] == [
        "a node would do",
        "a limit",
        "odd",
        "the rest of a gang",
        "others",
    ]
    assert [values for _, values in chart.rows] == [[9, 8, 7, 6, 5]]
    assert chart.says == "35 wait now"
    few = waits_chart([sample(0, "", waiting=1), sample(0, "room", waiting=1), sample(1, "")])
    assert few is not None
    assert [values for _, values in few.rows] == [[1], [0]]
    assert waits_chart([]) is None


async def test_the_page(pages: Pages, sql: Client) -> None:
    models = ("<b>A100", "waits", "A 1", "A-1", None, "any model")
    spec = NodeSpec(name="box", instance_id="1", gpus=[Gpu(resource_id=uuid4(), model=m) for m in models])
    sql.register_node(uuid4(), spec)
    sql.create_queue("renders")
    sql.spawn_lease("renders", "draw", placement={"resources": {"gpu": 1}})
    sql.reap()
    for span in ("", "?span=6+h"):
        text = await pages.page(f"/fleet/history{span}")
        check(text)
        assert "&lt;b&gt;A100" in text
        assert "0 in use, 1 free, 0 asked for" in text
        assert "1 wait now" in text
    assert "No sample yet" in await pages.page("/fleet/history?span=7+d")


def ended(*completed: int) -> list[Minute]:
    """Minutes in which so many completed."""
    none: dict[str, Any] = dict.fromkeys(field.name for field in fields(Minute))
    counts = none | {"claims": 0, "failed": 0, "cancelled": 0, "retried": 0, "expired": 0}
    return [
        Minute(**counts | {"minute": BEGAN + number * MINUTE, "completed": value})
        for number, value in enumerate(completed)
    ]


def test_a_chart_is_cut_where_few_are_far_beyond() -> None:
    """Else it shows all of them, as where most minutes are nothing."""
    names = ("completed", "failed")
    minutes = ended(*[100] * 58, 299)
    assert cut(minutes, names) is None
    found = cut([*minutes[:-1], *ended(300)], names)
    assert found is not None
    assert (found.most, found.beyond) == (120, [(BEGAN, "completed", 300)])
    assert cut(ended(*[100] * 50, *[900] * 9), names) is None
    assert cut(ended(*[0] * 58, 9), names) is None
    assert cut([], names) is None


async def test_what_is_cut_off_is_told(pages: Pages, sql: Client) -> None:
    sql.create_queue("renders")

    async def throughput(_: str | None = None) -> Cached[list[Minute]]:
        return Cached(ended(*[100] * 57, 20_000, 100, 100), datetime.now(UTC))

    pages.app.state.dashboard.reads.throughput = throughput
    for path in ("/", "/queues/renders"):
        text = await pages.page(path)
        check(text)
        assert 'data-most="120.0"' in text
        assert "Too high to draw: 20,000 completed at <time" in text
