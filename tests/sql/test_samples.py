"""fleet_history: GPUs by model and what waits by reason, as upkeep has sampled it."""

from datetime import timedelta

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api
from tests.sql.gangs import gpus
from tests.sql.test_tenants_apart import limited

MINUTE = timedelta(minutes=1)
Figures = dict[str, tuple[float, float, float]]


def last(api: Api, kind: str, **arguments: int) -> Figures:
    """used, present and waiting by name, at the last time that is there."""
    rows: list[Row] = api.rows("fleet_history", kind=kind, **arguments)
    at = max((row["at"] for row in rows), default=None)
    return {r["name"]: (r["used"], r["present"], r["waiting"]) for r in rows if r["at"] == at}


def test_the_fleet_and_what_waits(api: Api, queue: str, clock: Clock) -> None:
    """A minute has one sample, an hour its mean; who is limited to a tenant sees none."""
    devices = [gpu | {"model": model} for gpu, model in zip(gpus(3), "AAB", strict=True)]
    node = api.node(gpus=devices, labels={"gpu_model": "A"}, heartbeat_timeout=86400)
    api.node(gpus=gpus(4), heartbeat_timeout=5)
    claim = api.running(queue, node, placement={"resources": {"gpu": 1}}, claim_timeout=86400)
    of_a = {"label": "gpu_model", "op": "in", "values": ["A"]}
    for _ in range(2):
        api.spawn(queue, placement={"resources": {"gpu": 2}, "require": [of_a]})
    api.spawn(queue, placement={"resources": {"gpu_milli": 500}, "require": [of_a | {"values": ["A", "C"]}]})
    api.spawn(queue, placement={"require": [{"label": "zone", "op": "in", "values": ["x"]}]})
    api.spawn(queue, delay=10**6)
    api.rows("create_limit", name="none", spec={"slots": 1})
    for _ in range(3):
        api.spawn(queue, limits=["none"])
    clock.freeze(clock.now().replace(minute=58, second=30))
    for _ in range(2):
        api.reap()
    clock.advance(MINUTE)
    api.reap()
    assert last(api, "gpus") == {"A": (1, 2, 4), "B": (0, 1, 0), "": (0, 0, 0.5)}
    waits = {"": (1, 1, 7), "room": (0, 0, 4), "require": (0, 0, 1), "limit": (0, 0, 2)}
    assert last(api, "waits") == waits
    assert len(api.rows("fleet_history", kind="gpus")) == 2 * 3
    api.complete(claim)
    clock.advance(MINUTE)
    api.reap()
    assert last(api, "gpus")["A"] == (0, 2, 4)
    assert last(api, "gpus", minutes=361)["A"] == (1, 2, 4)
    assert last(api, "waits", minutes=361)["limit"] == (0, 0, 2.5)  # 3 before upkeep let one through
    clock.advance(361 * MINUTE)
    api.reap()
    assert len({row["at"] for row in api.rows("fleet_history", kind="waits", minutes=360)}) == 1
    clock.advance(timedelta(days=36))
    api.reap()
    assert last(api, "waits", minutes=50400) == {}
    assert api.fault("fleet_history", kind="other") == "p_kind"
    assert api.fault("fleet_history", kind="gpus", minutes=0) == "p_minutes"
    with limited(api, "film"):
        api.refused("QHA03", "fleet_history", kind="gpus")


def test_a_gap_and_a_clock_that_was_set_back(api: Api, queue: str, clock: Clock) -> None:
    """Hours are kept in which upkeep stopped for long, and what comes after a step back is new."""
    began = clock.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    clock.freeze(began)
    api.reap()
    clock.advance(timedelta(hours=7))
    api.reap()
    assert began in {row["at"] for row in api.rows("fleet_history", kind="waits", minutes=540)}
    clock.advance(timedelta(hours=1))
    api.reap()
    leases = [api.spawn(queue) for _ in range(9)]
    api.reap_after(clock, MINUTE)
    waiting = last(api, "waits")[""][2]
    clock.advance(-timedelta(hours=1))
    for lease in leases:
        api.rows("cancel_lease", lease=lease)
    api.reap_after(clock, MINUTE)
    clock.advance(timedelta(hours=1))
    assert last(api, "waits")[""][2] == waiting - 9


def test_names_that_leases_make_up_hide_no_models(api: Api, queue: str, clock: Clock) -> None:
    api.node(gpus=[gpus(1)[0] | {"model": "real"}], heartbeat_timeout=86400)
    for number in range(60):
        wanted = {"label": "gpu_model", "op": "in", "values": [f"made-up-{number}"]}
        api.spawn(queue, placement={"resources": {"gpu": 8}, "require": [wanted]})
    api.reap_after(clock, MINUTE)
    found = last(api, "gpus")
    assert found["real"][1] == 1
    assert len(found) == 50
