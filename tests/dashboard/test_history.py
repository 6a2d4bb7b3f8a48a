"""How the fleet filled, and what waited: the charts and the page."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.dashboard.history import all_gpus, gpu_charts, waits_chart
from hwqueue.types import FleetSample, Gpu, NodeSpec
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
