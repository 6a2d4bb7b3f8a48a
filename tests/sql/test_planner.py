"""Prices: who may set them, what they must be, how long they hold, and what they do to claims."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, raw, refusing
from tests.sql.logins import Logins

PLANNER = "hwqueue_planner"
TTL = timedelta(seconds=10)
LEVEL = [0.5] * 101
ROOM: Row = {"gpus": 8, "allocated": 5.5, "bound": 7.25}


def curve(*steps: tuple[int, float]) -> list[float]:
    """What a device is worth from so many thousandths on."""
    worth = [0.0] * 101
    for since, value in steps:
        worth[since // 10 :] = [value] * (101 - since // 10)
    return worth


# as where half of what waits asks for 810, and hardly anything for 190
FEW_SMALL = curve((460, 0.4), (1000, 0.8))


@pytest.fixture
def epoch(api: Api, clock: Clock) -> int:
    """Of a leader, once the one of the test before is gone."""
    clock.advance(timedelta(hours=1))
    api.value("lead_planner", holder="the one before", ttl=timedelta(0))
    return int(api.value("lead_planner", holder="me"))


def priced(api: Api, queue: str, epoch: int, /, worth: Sequence[Any] = LEVEL, **more: Any) -> str:
    given = {"ttl": TTL, "round": 1, "epoch": epoch} | more
    verdict = api.value("set_prices", queue=queue, prices={"device_worth": worth}, **given)
    assert isinstance(verdict, str)
    return verdict


def gpu_node(api: Api, devices: int = 1, **spec: Any) -> Node:
    """A node that counts nothing but its GPUs."""
    return api.node(gpus=[{"resource_id": str(uuid4())} for _ in range(devices)], **spec)


def pair(api: Api, queue: str) -> tuple[UUID, UUID]:
    """A lease that leaves 190 of a device, and a younger one that leaves 470."""
    return api.needing(queue, gpu_milli=810), api.needing(queue, gpu_milli=530)


def beside_prices(plain: float, gpus: int) -> float:
    """The score of whole devices that gain nothing: reach weighs 21 instead of 56."""
    own = 14 + 3.5 * gpus + 0.35
    return own + 21 / 56 * (plain - own)


class TestScore:
    """What prices do."""

    @pytest.mark.thorough
    def test_the_lease_that_leaves_more_worth_comes_first(self, api: Api, queue: str, epoch: int) -> None:
        older, younger = pair(api, queue)
        assert priced(api, queue, epoch, FEW_SMALL) == "set"
        assert api.claimed(gpu_node(api), queue) == [younger]
        plain = api.queue()
        older, younger = pair(api, plain)
        assert api.claimed(gpu_node(api), plain) == [older]

    def test_scores_of_claims_and_dry_runs_are_the_same(self, api: Api, queue: str, epoch: int) -> None:
        """Without room there is none."""
        pair(api, queue)
        node = gpu_node(api)
        wanted: Row = {"placement": {"resources": {"gpu_milli": 530}}}
        wanted["options"] = {"queue": queue, "nodes": [node.name]}
        before = api.row("match_nodes", **wanted)["score"]
        priced(api, queue, epoch, FEW_SMALL)
        after = api.row("match_nodes", **wanted)["score"]
        # 530 taken, a worth of 0.8 gone, one of 0.4 left
        assert after - before == pytest.approx(42 * (0.53 + 0.4 - 0.8))
        [claim] = api.claim(node, queue)
        assert claim["score"] == pytest.approx(after)
        assert api.row("match_nodes", **wanted)["score"] is None

    def test_a_class_with_preferences_about_others_is_priced_too(self, api: Api, epoch: int) -> None:
        queue = api.queue()
        near = {"when": {"leases": {"labels": {"app": "db"}}, "domain": "node"}}
        placement: Row = {"resources": {"gpu_milli": 530}, "prefer": [near]}
        scores = []
        for worth in (None, FEW_SMALL):
            if worth:
                priced(api, queue, epoch, worth)
            lease = api.spawn(queue, placement=placement)
            api.settle_terms()
            claim = api.granted(lease, gpu_node(api), queue)
            scores.append(claim["score"])
        assert scores[1] - scores[0] == pytest.approx(42 * (0.53 + 0.4 - 0.8))

    @pytest.mark.parametrize(
        ("gpus", "worth", "gain"),
        [(1, curve((1000, 1.0)), 0.0), (2, curve((1000, 0.8)), 0.4), (8, curve(), None)],
        ids=["gain nothing where they are worth all of what they give", "gain", "gain up to 100"],
    )
    def test_whole_devices(
        self, api: Api, epoch: int, gpus: int, worth: list[float], gain: float | None
    ) -> None:
        queue = api.queue()
        node = gpu_node(api, 2 * gpus)
        for _ in range(2):
            api.needing(queue, gpu=gpus)
        [plain] = api.claim(node, queue)
        priced(api, queue, epoch, worth)
        [claim] = api.claim(node, queue)
        own = beside_prices(plain["score"], gpus)
        wanted = 100 if gain is None else own + 42 * gain
        assert claim["score"] == pytest.approx(wanted)

    def test_work_with_gpus_stays_above_work_without(self, api: Api, queue: str, epoch: int) -> None:
        """A share that wastes most of a device, on a node whose cpu it also wastes."""
        priced(api, queue, epoch, curve((1000, 1.0)))
        api.needing(queue, cpu_milli=10)
        lease = api.needing(queue, gpu_milli=20, cpu_milli=7990)
        node = gpu_node(api, capacity={"cpu_milli": 8000})
        [claim] = api.claim(node, queue)
        assert (claim["lease_id"], claim["score"]) == (lease, 0.01)

    def test_reach_counts_less_beside_prices(self, api: Api, queue: str, epoch: int) -> None:
        """Of a class that only this node can take."""
        node = gpu_node(api, 2, labels={"only": "here"})
        gpu_node(api)
        only: Row = {"resources": {"gpu": 1}, "require": [{"label": "only", "op": "exists"}]}
        for _ in range(2):
            api.spawn(queue, placement=only)
        api.rows("reap")
        [plain] = api.claim(node, queue)
        priced(api, queue, epoch, curve((1000, 1.0)))
        [claim] = api.claim(node, queue)
        assert plain["score"] > 14 + 3.5 + 0.35 + 1
        assert claim["score"] == pytest.approx(beside_prices(plain["score"], 1))

    def test_the_newest_prices_count_until_they_run_out(self, api: Api, epoch: int, clock: Clock) -> None:
        queue = api.queue()
        older, younger = pair(api, queue)
        priced(api, queue, epoch, FEW_SMALL, round=9)
        priced(api, queue, epoch, round=10)
        assert api.claimed(gpu_node(api), queue) == [older]
        api.rows("cancel_lease", lease=younger)
        priced(api, queue, epoch, FEW_SMALL, round=11)
        clock.advance(TTL)
        older, _younger = pair(api, queue)
        assert api.claimed(gpu_node(api), queue) == [older]

    def test_a_queue_has_its_own(self, api: Api, epoch: int) -> None:
        """Of two queues in one claim each is scored by its prices: 0.19 devices more, or none."""
        priced_queue, other = api.queue(), api.queue()
        api.needing(priced_queue, gpu_milli=810)
        lease = api.needing(other, gpu_milli=810)
        priced(api, priced_queue, epoch, curve((190, 0.0), (1000, 1.0)))
        assert api.claimed(gpu_node(api), priced_queue, other) == [lease]


class TestLead:
    """One leads; the writes of others are refused."""

    def test_one_leads_until_its_time_is_over(self, api: Api, epoch: int, clock: Clock) -> None:
        """Or until it gives the lead up."""
        assert api.value("lead_planner", holder="other") is None
        clock.advance(TTL - timedelta(seconds=1))
        assert api.value("lead_planner", holder="me") == epoch
        clock.advance(TTL - timedelta(seconds=1))
        assert api.value("lead_planner", holder="other") is None
        clock.advance(timedelta(seconds=1))
        assert api.value("lead_planner", holder="other") == epoch + 1
        assert api.value("lead_planner", holder="me") is None
        assert api.value("lead_planner", holder="other", ttl=timedelta(0)) == epoch + 1
        assert api.value("lead_planner", holder="me") == epoch + 2

    def test_a_deposed_leader_writes_nothing(self, api: Api, queue: str, epoch: int) -> None:
        assert priced(api, queue, epoch, round=7) == "set"
        api.value("lead_planner", holder="me", ttl=timedelta(0))
        api.value("lead_planner", holder="other")
        before = api.contents()
        assert priced(api, queue, epoch, FEW_SMALL, round=8) == "deposed"
        # nor does one that makes an epoch up
        assert priced(api, queue, epoch + 2, FEW_SMALL, round=8) == "deposed"
        assert api.contents() == before
        # a new leader counts from 1 again
        assert priced(api, queue, epoch + 1, FEW_SMALL) == "set"
        _older, younger = pair(api, queue)
        assert api.claimed(gpu_node(api), queue) == [younger]

    def test_an_old_round_writes_nothing(self, api: Api, epoch: int) -> None:
        first, second = api.queue(), api.queue()
        assert priced(api, first, epoch, round=2) == "set"
        before = api.contents()
        assert priced(api, second, epoch, round=1) == "old_round"
        assert api.contents() == before
        assert priced(api, second, epoch, round=2) == "set"
        assert priced(api, first, epoch, FEW_SMALL, round=2) == "set"


class TestView:
    """What a planner reads."""

    @pytest.fixture
    def items(self, api: Api) -> Any:
        def read(part: str, queue: str | None = None, /, **options: Any) -> list[Row]:
            found: list[Row] = []
            after: str | None = None
            while True:
                rows = api.rows("planner_view", part=part, queue=queue, after=after, **options)
                found += [row["item"] for row in rows if row["item"] is not None]
                after = rows[-1]["next"] if rows else None
                if after is None:
                    return found

        return read

    @pytest.mark.parametrize("limit", [1, 2, 1000])
    def test_classes_with_something_ready(self, api: Api, queue: str, items: Any, limit: int) -> None:
        node = gpu_node(api, labels={"for": queue})
        for _ in range(3):
            api.needing(queue, gpu_milli=530, cpu_milli=7)
        whole = {"require": [{"label": "for", "op": "in", "values": [queue]}]}
        api.spawn(queue, placement=whole | {"resources": {"gpu": 2, "memory_mib": 9}})
        api.needing(queue, cpu_milli=1)  # without GPUs
        api.spawn(queue, delay=60, placement={"resources": {"gpu": 4}})  # not yet
        taken = api.needing(queue, gpu=1)
        assert api.claimed(node, queue) == [taken]  # and all classes are judged for the node
        share, two = items("classes", queue, limit=limit)
        assert (share["ready"], share["gpus"], share["gpu_milli"]) == (3, 1, 530)
        assert (two["ready"], two["gpus"], two["gpu_milli"]) == (1, 2, 0)
        assert (share["cpu_milli"], two["memory_mib"]) == (7, 9)
        [counted, _] = items("classes", queue, most=2)
        assert counted["ready"] == 2
        [profile] = {each["profile_id"] for each in items("nodes")} & set(two["profiles"])
        assert profile in share["profiles"]
        assert items("classes", api.queue()) == []

    def test_nodes_by_profile_and_size(self, api: Api, queue: str, items: Any, clock: Clock) -> None:
        nodes = [gpu_node(api, 2, capacity={"cpu_milli": 8123}) for _ in range(3)]
        api.needing(queue, gpu_milli=334, cpu_milli=1000)
        api.claim(nodes[0], queue)
        api.rows("cordon_node", node=nodes[1].node_id)

        def found() -> list[Row]:
            return [each for each in items("nodes", limit=1) if each["cpu_milli"] == 8123]

        total = {"nodes": 0, "cpu_free": 0, "660": 0, "1000": 0}
        for group in found():
            assert (group["gpus"], group["memory_free"]) == (2, None)
            total["nodes"] += group["nodes"]
            total["cpu_free"] += group["cpu_free"]
            for level, devices in group["free"].items():
                total[level] += devices
        assert total == {"nodes": 2, "cpu_free": 15_246, "660": 1, "1000": 3}
        clock.advance(timedelta(days=1))  # none gives a sign of life
        assert found() == []

    def test_queues_that_are_not_paused(self, api: Api, items: Any) -> None:
        names = [api.queue() for _ in range(3)]
        api.rows("pause_queue", queue=names[1])
        found = [each["queue"] for each in items("queues", limit=1)]
        assert [name for name in names if name in found] == [names[0], names[2]]
        assert found == sorted(found)


def test_prices_are_forgotten_an_hour_later(api: Api, queue: str, epoch: int, clock: Clock) -> None:
    """A round leaves no row of the one before."""
    before = api.contents()["queue_price"][0]
    good = [0.0] * 101, [1.0] * 101, [n / 100 for n in range(101)], LEVEL
    for number, worth in enumerate(good, start=1):
        assert priced(api, queue, epoch, worth, round=number) == "set"
    assert api.contents()["queue_price"][0] == before + 1
    api.prune_after(clock, TTL + timedelta(minutes=59))
    assert api.contents()["queue_price"][0] >= 1
    api.prune_after(clock, timedelta(minutes=1))
    assert api.contents()["queue_price"][0] == 0
    epoch = api.value("lead_planner", holder="me")
    assert priced(api, queue, epoch, FEW_SMALL, round=5) == "set"
    _older, younger = pair(api, queue)
    assert api.claimed(gpu_node(api), queue) == [younger]


# What a hostile planner may try.
BAD_CURVES: list[Any] = [
    None,
    {},
    "0.5",
    [],
    [0.5] * 100,
    [0.5] * 102,
    [0.5, 0.4] + [0.5] * 99,
    [0.5] * 100 + [0.499999],
    [-0.1] + [0.5] * 100,
    [0.5] * 100 + [1.1],
    [None] * 101,
    [0.5] * 100 + [None],
    ["NaN"] * 101,
    ["0.5"] * 101,
    [[0.5]] * 101,
    [True] * 101,
]
BAD: dict[str, list[Row]] = {
    "lead_planner": [
        *({"holder": holder} for holder in (None, "", "x" * 201)),
        *({"ttl": ttl} for ttl in (None, "-1 s", "-170000 years", "2 hours", "infinity")),
    ],
    "set_prices": [
        {"prices": []},
        {"prices": {"device_worth": LEVEL, "leases": {}}},
        {"prices": raw('{"device_worth": [' + ", ".join(["1e131071"] * 101) + "]}")},
        *({"ttl": ttl} for ttl in ("-1 s", "2 hours", None)),
        {"round": -1},
        {"round": None},
        {"epoch": None},
    ],
    "planner_view": [
        {"part": "leases"},
        {"part": None},
        {"part": "nodes", "after": "x"},
        {"part": "nodes", "limit": 0},
        {"part": "nodes", "most": 0},
        {"part": "classes", "queue": "nowhere", "after": "x"},
    ],
    "note_room": [
        {"room": None},
        {"room": {}},
        *({"room": ROOM | {"leases": {"reserved": bad}}} for bad in (-1, None, [1], [])),
        {"room": ROOM | {"leases": {"won": 1}}},
        *({"room": ROOM | {"gpus": gpus}} for gpus in (7, 1e10, "8")),
        *({"room": ROOM | {"seconds": bad}} for bad in ([1], {"solve": [0.3]})),
        {"room": ROOM | {"resting": 1.5}},
        {"room": ROOM | {"bound": None}},
        {"room": ROOM | {"bound": 5}},
        {"room": ROOM | {"allocated": -1}},
        {"room": ROOM | {"nodes": 1}},
        {"ttl": "2 hours"},
        {"round": -1},
        {"epoch": None},
    ],
}


@pytest.mark.parametrize("function", BAD)
@pytest.mark.thorough
@pytest.mark.every_variant
def test_what_is_refused(api: Api, epoch: int, function: str) -> None:
    of_a_round: Row = {"ttl": TTL, "round": 1, "epoch": epoch}
    good: dict[str, Row] = {
        "lead_planner": {"holder": "x"},
        "set_prices": {"queue": api.queue(), "prices": {"device_worth": LEVEL}} | of_a_round,
        "note_room": {"room": ROOM} | of_a_round,
    }
    for changes in BAD[function]:
        if changes.get("ttl") != "infinity" or api.conn.info.server_version >= 170000:
            api.refused("QHA01", function, **good.get(function, {}) | changes)
    with refusing("QHQ01"):
        priced(api, "nowhere", epoch)
    for queue in ({}, {"queue": "nowhere"}):
        api.refused("QHQ01", "planner_view", part="classes", **queue)


@pytest.mark.parametrize("worth", BAD_CURVES, ids=lambda worth: str(worth)[:40])
@pytest.mark.thorough
def test_bad_curves(api: Api, epoch: int, worth: Any) -> None:
    given = {"prices": {"device_worth": worth}, "ttl": TTL, "round": 1, "epoch": epoch}
    refusal = api.refused("QHA01", "set_prices", queue=api.queue(), **given)
    assert str(refusal.field).startswith("prices.device_worth")


class TestStatus:
    """What a planner says of the room on GPUs, and for how long."""

    def noted(self, api: Api, epoch: int, /, **more: Any) -> Any:
        given = {"room": ROOM, "ttl": TTL, "round": 1, "epoch": epoch}
        return api.value("note_room", **given | more)

    def samples(self, api: Api) -> dict[str, float]:
        return {
            f"{row['name']} {' '.join(row['labels'].values())}": row["value"]
            for row in api.rows("metrics")
            if row["name"].startswith("hwqueue_planner_")
        }

    def of_room(self, api: Api) -> dict[str, float]:
        """Without what became of leases in tests before."""
        found = self.samples(api)
        return {name: value for name, value in found.items() if "_leases_total" not in name}

    def test_what_it_found(self, api: Api, queue: str, epoch: int, clock: Clock) -> None:
        """Until that has run out."""
        self.noted(api, epoch, ttl=timedelta(0))
        status = api.row("planner_status")
        assert (status["holder"], status["gpus"], status["prices"]) == ("me", None, [])
        priced(api, queue, epoch, FEW_SMALL)
        assert self.noted(api, epoch) == "noted"
        status = api.row("planner_status")
        assert (status["holder"], status["epoch"]) == ("me", epoch)
        assert (status["gpus"], status["allocated"], status["bound"]) == (8, 5.5, 7.25)
        [price] = [each for each in status["prices"] if each["queue"] == queue]
        assert price["device_worth"] == FEW_SMALL
        assert self.of_room(api) == {
            "hwqueue_planner_gpus all": 8,
            "hwqueue_planner_gpus allocated": 5.5,
            "hwqueue_planner_gpus bound": 7.25,
            f"hwqueue_planner_gpu_worth {queue}": 0.8,
        }
        clock.advance(TTL)
        assert api.rows("planner_status") == []
        assert self.of_room(api) == {}

    def test_who_was_replaced_says_nothing(self, api: Api, epoch: int) -> None:
        self.noted(api, epoch, round=5)
        before = api.contents()
        assert self.noted(api, epoch - 1, round=6) == "deposed"
        assert self.noted(api, epoch, round=4) == "old_round"
        assert api.contents() == before

    def test_what_became_of_leases_is_added_up(self, api: Api, epoch: int, clock: Clock) -> None:
        """For good; how long a round took is that of the last one."""
        before = self.samples(api)
        for leases, seconds in (({"proposed": 3, "reserved": 2}, 0.5), ({"fetched": 2}, 0.25)):
            room = ROOM | {"leases": leases, "seconds": {"read": seconds}, "resting": 4}
            assert self.noted(api, epoch, room=room) == "noted"
        status = api.row("planner_status")
        assert (status["seconds"], status["resting"]) == ({"read": 0.25}, 4)
        samples = self.samples(api)
        for verdict, more in {"proposed": 3, "reserved": 2, "fetched": 2, "expired": 0}.items():
            name = f"hwqueue_planner_leases_total {verdict}"
            assert samples[name] - before.get(name, 0) == more
            assert status["leases"].get(verdict, 0) == samples[name]
        assert samples["hwqueue_planner_round_seconds read"] == 0.25
        assert samples["hwqueue_planner_resting_nodes "] == 4
        clock.advance(TTL)
        assert {name.split()[0] for name in self.samples(api)} == {"hwqueue_planner_leases_total"}


def test_a_planner_needs_no_other_rights(api: Api, queue: str, logins: Logins, epoch: int) -> None:
    """Who may call what: test_roles.py."""
    api.needing(queue, gpu_milli=530)
    _name, planner = logins.api(PLANNER)
    assert planner.rows("planner_view", part="classes", queue=queue)
    assert priced(planner, queue, epoch) == "set"
