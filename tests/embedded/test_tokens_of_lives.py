"""No token is given twice, whatever is lost: by a crash, or by a disk that is rolled back."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from hwqueue.embedded import EmbeddedServer
from hwqueue.schema import upgrade
from tests.fix_db import THROWAWAY
from tests.patience import looks
from tests.sql.api import Api, token

# as if the clock had been ahead for an hour when the server was started last
AHEAD = "update hwqueue.shard set generation = generation + (3600::bigint << 40)"
LAZY = {"wal_writer_delay": "10s", "synchronous_commit": "off"}


class Lives:
    """A server whose disk can be rolled back; one lease that is claimed in each of its lives."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "server", settings=THROWAWAY | LAZY)
        self.data, self.copy = folder / "server" / "data", folder / "copy"
        upgrade(self.server.ensure_running())
        with self.connected() as api:
            self.queue, self.node = api.queue(), api.node()
            api.spawn(self.queue)

    @contextmanager
    def connected(self) -> Iterator[Api]:
        """The functions, on the server as it is now."""
        with psycopg.connect(self.server.ensure_running(), autocommit=True) as conn:
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
            tokens += [self.claim(), self.claim()]
            self.server.stop()
        return tokens

    def crash(self) -> None:
        """End every process at once; what no log has is lost."""
        pid = self.server.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        for _ in looks():
            if not self.server.status().running and not (self.data / "postmaster.pid").exists():
                return

    def keep(self) -> None:
        """Copy the disk of the server, which is stopped."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.data, self.copy, symlinks=True)
        own(self.copy, self.data)

    def roll_back(self) -> None:
        """Put the copy back."""
        shutil.rmtree(self.data)
        shutil.copytree(self.copy, self.data, symlinks=True)
        own(self.data, self.copy)


def own(made: Path, like: Path) -> None:
    """Give the files to whom the server runs as, with the rights that it insists on."""
    owner = like.stat()
    for path in (made, *made.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    made.chmod(0o700)


@pytest.fixture
def lives(open_folder: Path) -> Iterator[Lives]:
    """A server of the test's own."""
    made = Lives(open_folder)
    yield made
    made.server.stop()


def test_no_token_is_given_twice(lives: Lives) -> None:
    with lives.connected() as api:
        api.conn.execute("checkpoint")
        [lost] = api.claim(lives.node, lives.queue)
        lives.crash()
    known = [lost["claim_token"], *lives.live(1)]  # which can claim it: the claim is lost
    assert known == sorted(known)
    before = list(known)
    lives.keep()
    for _ in range(2):  # each rolls back what the one before has written, starts included
        rolled_back = lives.live()
        assert rolled_back == sorted(rolled_back)
        assert min(rolled_back) > max(before)
        known += rolled_back
        lives.roll_back()
    with lives.connected() as api:
        api.conn.execute(AHEAD)
    lives.server.stop()
    lives.keep()
    for _ in range(2):  # the clock is set back at each start
        known += lives.live(1)
        lives.roll_back()
    assert len(known) == len(set(known))
