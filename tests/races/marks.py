"""A queue at work: low-water marks seen from outside, and cycles of work that move them."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, register

_MARKS = """
  select m.rank, m.position
  from hwqueue.low_water w
  join hwqueue.queue q using (queue_id)
  cross join unnest(w.ranks, w.positions) m(rank, position)
  where q.name = %s and w.class_id = %s
"""
_FRONT = """
  select r.lease_id from hwqueue.ready r join hwqueue.queue q using (queue_id)
  where q.name = %s order by r.tier, r.rank, r.position limit 1
"""
_CLASS = "select class_id from hwqueue.lease where lease_id = %s"
# Further than a front may be behind what is claimed and still be said to move.
FAR = "select nextval('hwqueue.ready_position_seq') from generate_series(1, 1001)"
_MOVES = 32  # so many claims, about, move a mark once
NOWHERE = {"placement": {"require": [{"label": "nowhere", "op": "exists"}]}}
_VERSION = """
  select max(w.version) from hwqueue.low_water w join hwqueue.queue q using (queue_id)
  where q.name = %s and w.class_id = 0
"""
_SKIP = """
  update hwqueue.low_water w set version = w.version + %s
  from hwqueue.queue q where q.queue_id = w.queue_id and q.name = %s and w.class_id = 0
"""
_POSITION = "select position from hwqueue.ready where lease_id = %s"


class Line:
    """A queue and a node that works it off, over one autocommit connection.

    One whose front stands still begins with a lease of a high priority that nobody may run: its
    marks are those of the class of plain leases.
    """

    def __init__(self, direct: Direct, queue: str = QUEUE, *, stands: bool = False, **node: Any) -> None:
        self.conn = direct.conn
        self.queue = queue
        self.direct = direct
        direct.create_queue(queue)
        direct.rows("set_queue_policy", queue=queue, policy={"retry": {"kind": "fixed", "base": 0}})
        self.node = register(direct, **node)
        self._class_id = 0
        if stands:
            self.spawn(priority=9, **NOWHERE)
            plain = self.spawn()
            self._class_id = self.class_of(plain)
            assert self.take(1) == [plain]

    def spawn(self, **options: Any) -> UUID:
        """A new lease; its id."""
        lease = self.direct.spawn(self.queue, options)["lease_id"]
        assert isinstance(lease, UUID)
        return lease

    def claim(self) -> Row:
        """The next lease, which must be there; its claim."""
        [claim] = self.direct.claim(self.queue, *self.node)
        return claim

    def take(self, count: int) -> list[UUID]:
        """The next leases, one claim for each; as many as there are."""
        claims = [self.direct.claim(self.queue, *self.node) for _ in range(count)]
        return [row["lease_id"] for rows in claims for row in rows]

    def work(self, cycles: int = 1, **options: Any) -> UUID:
        """Spawn, claim, complete, so many times; the last lease that was claimed."""
        for _ in range(cycles):
            self.spawn(**options)
            claim = self.claim()
            self.direct.complete(claim["lease_id"], claim["claim_token"])
        lease = claim["lease_id"]
        assert isinstance(lease, UUID)
        return lease

    def front(self) -> UUID:
        """The first lease of the queue, whoever may run it."""
        [(found,)] = self.conn.execute(_FRONT, [self.queue]).fetchall()
        assert isinstance(found, UUID)
        return found

    def work_past(self, position: int, class_id: int | None = None, **options: Any) -> None:
        """Work until the mark of that priority, if need be of that class, is past a position."""
        followed = self._class_id if class_id is None else class_id
        rank = -options.get("priority", 0)
        self.work_until(lambda: self.marks_of(followed).get(rank, 0) > position, **options)

    def work_until(self, reached: Callable[[], bool], **options: Any) -> None:
        """Work until then: other tests' transactions, anywhere on the server, hold marks back."""
        for _ in looks():
            if reached():
                return
            self.work(_MOVES, **options)
        raise AssertionError(f"the marks are still {self.marks()}")

    def versions(self) -> int:
        """How often the marks of the queue have moved."""
        [(number,)] = self.conn.execute(_VERSION, [self.queue]).fetchall()
        return int(number)

    def skip_versions(self, count: int) -> None:
        """As if the marks of the queue had moved so many times."""
        self.conn.execute(_SKIP, [count, self.queue])

    def settle_in(self, *priorities: int) -> None:
        """Work until the mark of each priority has moved."""
        for priority in priorities or (0,):
            self.work_past(self.last_position(), priority=priority)

    def marks(self) -> Mapping[int, int]:
        """The mark of each rank; there is one tier."""
        return self.marks_of(self._class_id)

    def marks_of(self, class_id: int) -> Mapping[int, int]:
        """The marks of a class; 0: of the queue."""
        return dict(self.conn.execute(_MARKS, [self.queue, class_id]).fetchall())

    def class_of(self, lease: UUID) -> int:
        """The class of a lease."""
        [(number,)] = self.conn.execute(_CLASS, [lease]).fetchall()
        return int(number)

    def last_position(self) -> int:
        """The last position that anyone has drawn."""
        [(number,)] = self.conn.execute("select last_value from hwqueue.ready_position_seq").fetchall()
        return int(number)


def position(direct: Direct, lease: UUID) -> int:
    """Where a lease stands in line, for a session that sees it."""
    [(number,)] = direct.conn.execute(_POSITION, [lease]).fetchall()
    return int(number)
