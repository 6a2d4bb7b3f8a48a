"""No token is given twice, whatever is lost: by a crash, or by a disk that is rolled back."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import sleep
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.schema import upgrade
from hwqueue.testing import install_clock
from tests.calls import Row
from tests.fix_db import fresh_database
from tests.own_server import OwnServer, own_server
from tests.sql.api import Api, refusing, token

# as if the clock had been ahead for an hour when the server was started last
AHEAD = "update hwqueue.installation set generation = generation + (3600::bigint << 40)"
LAZY = {"wal_writer_delay": "10s", "synchronous_commit": "off"}
MINUTE = timedelta(minutes=1)
LASTING = {"placement": {"require": [{"label": "zone", "op": "exists", "during": "execution"}]}}


class Lives:
    """A database of a server that crashes, and a lease that is claimed in each of its lives."""

    def __init__(self, server: OwnServer, dsn: str) -> None:
        self.server, self.dsn = server, dsn
        upgrade(dsn)
        with self.connected() as api:
            self.queue, self.node = api.queue(), api.node()
            api.spawn(self.queue)

    @contextmanager
    def connected(self) -> Iterator[Api]:
        """The functions, on the server as it is now."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            yield Api(conn)

    def claim(self) -> int:
        """The token that the lease gets now."""
        with self.connected() as api:
            [claim] = api.claim(self.node, self.queue)
            api.rows("release_lease", **token(claim))
            return int(claim["claim_token"])

    def live(self, count: int = 2) -> list[int]:
        """Start the server, claim twice, stop it; that often."""
        tokens = []
        for _ in range(count):
            self.server.start(**LAZY)
            tokens += [self.claim(), self.claim()]
            self.server.stop()
        return tokens

    @contextmanager
    def losing(self, *, in_place: bool) -> Iterator[Api]:
        """The functions; a crash loses their last call, and nothing from before."""
        with self.server.crashing(self.dsn, in_place=in_place, **LAZY) as conn:
            conn.execute("checkpoint")
            yield Api(conn)


@pytest.fixture(scope="module")
def server(server_dsn: str) -> Iterator[OwnServer]:
    """A server that loses what it has just committed when it crashes."""
    with own_server(server_dsn, **LAZY) as made:
        yield made


@pytest.fixture
def lives(server: OwnServer) -> Iterator[Lives]:
    """A database of the test's own, there."""
    with fresh_database(server.dsn) as dsn:
        yield Lives(server, dsn)
        if not server.is_running:
            server.start(**LAZY)


def test_after_a_disk_is_rolled_back(lives: Lives) -> None:
    server, copy = lives.server, lives.server.data.with_name("copy")
    server.stop()
    before = lives.live(1)
    known = list(before)
    server.copy_data(copy)
    for _ in range(2):  # each rolls back what the one before has written, starts included
        rolled_back = lives.live()
        assert rolled_back == sorted(rolled_back)
        assert min(rolled_back) > max(before)
        known += rolled_back
        server.roll_back(copy)
    server.start(**LAZY)
    with lives.connected() as api:
        api.conn.execute(AHEAD)
    server.stop()
    server.copy_data(copy)
    for _ in range(2):  # the clock is set back at each start
        known += lives.live(1)
        server.roll_back(copy)
    assert len(known) == len(set(known))


@pytest.mark.parametrize("in_place", [True, False])
def test_after_a_crash(lives: Lives, in_place: bool) -> None:
    """Also of one backend: then its server recovers without another start.

    Lives that know nothing of each other are told apart by the tenth of a second in which they began.
    """
    known = []
    for is_noted in (False, False, False, False, True):
        if is_noted:  # else the generation is lost with the claim
            known.append(lives.claim())
        sleep(0.1)
        with lives.losing(in_place=in_place) as api:
            [lost] = api.claim(lives.node, lives.queue)
        known.append(lost["claim_token"])
    known.append(lives.claim())
    assert known == sorted(set(known))


class Reserved:
    """A node for which one lease of each kind is reserved."""

    def __init__(self, api: Api) -> None:
        install_clock(api.conn).freeze()
        self.queue, self.node = api.queue(), api.node(labels={"zone": "a"})
        old = api.running(self.queue, self.node, **LASTING)["lease_id"]
        api.spawn(self.queue, replaces={"lease": str(old), "overlap": True}, **LASTING)
        members = Jsonb([{"task": "train", "count": 2, "options": LASTING}])
        api.rows("spawn_gang", queue=self.queue, members=members, options={})
        api.rows("spawn_everywhere", queue=self.queue, task="agent", options=LASTING)
        planned = str(api.spawn(self.queue, **LASTING))
        epoch = api.value("lead_planner", holder="me", ttl=MINUTE)
        place = {"lease": planned, "node": str(self.node.node_id)}
        api.rows("reserve_leases", places=[place], hold=MINUTE, round=1, epoch=epoch)
        for _ in range(3):  # as upkeep does about once a second
            api.rows("reap")

    def fetch(self, api: Api) -> dict[UUID, Row]:
        claims = api.claim(self.node, self.queue, qty=10)
        assert len(claims) == 5  # a gang has two members
        return {claim["lease_id"]: claim for claim in claims}


@pytest.mark.parametrize("in_place", [True, False])
def test_what_was_reserved_before_the_crash(lives: Lives, in_place: bool) -> None:
    """It is fetched again, with tokens above those that the lost fetch told: these are fenced."""
    with lives.connected() as api:
        reserved = Reserved(api)
    with lives.losing(in_place=in_place) as api:
        lost = reserved.fetch(api)
    with lives.connected() as api:
        found = reserved.fetch(api)
        assert api.rows("verify_invariants") == []
        for lease, claim in found.items():
            assert claim["claim_token"] > lost[lease]["claim_token"]
            assert claim["claim_token"] % 2 == 1  # not the first: that may have saved something
            with refusing("QHL01"):
                api.rows("complete_lease", **token(lost[lease]))
            api.complete(claim)
        assert api.rows("verify_invariants") == []


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("is_noted", [True, False])
def test_an_instance_that_a_crash_forgot_stays_fenced(lives: Lives, in_place: bool, is_noted: bool) -> None:
    """Neither of a new node nor of a known one; also when the new life has granted nothing yet."""
    lives.claim()
    for node in (uuid4(), lives.node.node_id):
        with lives.losing(in_place=in_place) as api:
            lost = api.node(node, name=str(node), instance_id="lost")
        if is_noted:
            lives.claim()
        with lives.connected() as api:
            assert api.node(node, name=str(node), instance_id="next").epoch > lost.epoch
            api.refused("QHN03", "deregister_own_node", **lost.who)
    # the instances that come after have epochs one after the other
    with lives.connected() as api:
        epochs = [api.node(node, instance_id=str(number)).epoch for number in range(2)]
    assert epochs[1] == epochs[0] + 1
