"""Gangs in tests: spawned, started, looked at, and the racks that they run in."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token

GPU: Row = {"placement": {"resources": {"gpu": 1}}}


def gpus(count: int) -> list[Row]:
    return [{"resource_id": str(uuid4())} for _ in range(count)]


def clear(api: Api) -> None:
    """Cancel all gangs and deregister all nodes of the tests before."""
    for row in api.rows("list_gangs", limit=1000):
        api.rows("cancel_gang", gang=row["gang_id"])
    reap(api)
    for row in api.rows("list_nodes"):
        api.rows("deregister_node", node=row["node_id"])


def spawn(api: Api, queue: str, count: int, /, member: Row | None = None, **options: Any) -> UUID:
    """Spawn a gang of equal members; its id."""
    members = [{"task": "train", "count": count, "options": member or {}}]
    rows = api.rows("spawn_gang", queue=queue, members=Jsonb(members), options=options)
    assert [row["ordinal"] for row in rows] == list(range(count))
    gang_id = rows[0]["gang_id"]
    assert isinstance(gang_id, UUID)
    return gang_id


def gang(api: Api, gang_id: UUID) -> Row:
    return api.row("get_gang", gang=gang_id)


def leases(api: Api, gang_id: UUID) -> list[UUID]:
    return [UUID(member["lease_id"]) for member in gang(api, gang_id)["members"]]


def nodes(api: Api, gang_id: UUID) -> set[str | None]:
    return {member.get("node") for member in gang(api, gang_id)["members"]}


def reap(api: Api) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(4):
        api.rows("reap")


def start(api: Api, racks: list[Node], queue: str) -> list[Row]:
    """Claim what is reserved, wherever it is."""
    reap(api)
    return [claim for node in racks for claim in api.claim(node, queue, qty=10)]


def later(api: Api, clock: Clock, alive: list[Node], seconds: int = 20) -> None:
    """Let time pass, as long as a gang backs off at most, while the nodes stay alive."""
    clock.advance(timedelta(seconds=seconds))
    for node in alive:
        api.rows("heartbeat_node", **node.who, claims=[])
    reap(api)


class Gang:
    """A gang of equal members, in a queue of its own unless one is named, and the nodes for it."""

    def __init__(
        self,
        api: Api,
        nodes: list[Node],
        size: int,
        /,
        member: Row = GPU,
        *,
        queue: str | None = None,
        **options: Any,
    ) -> None:
        self.api, self.nodes, self.queue = api, nodes, queue or api.queue()
        self.id = spawn(api, self.queue, size, member, **options)

    def now(self, *columns: str) -> tuple[Any, ...]:
        """What get_gang says in these columns."""
        found = gang(self.api, self.id)
        return tuple(found[column] for column in columns)

    @property
    def state(self) -> str:
        return str(self.now("state")[0])

    @property
    def place(self) -> str | None:
        place: str | None = self.now("place")[0]
        return place

    @property
    def leases(self) -> list[UUID]:
        """Of its members, by rank."""
        return leases(self.api, self.id)

    @property
    def on(self) -> set[str | None]:
        """The names of its members' nodes."""
        return nodes(self.api, self.id)

    @property
    def members(self) -> str:
        """By rank: (c)laimed, (r)eserved, (s)cheduled, or (-) another."""
        return "".join(
            "r" if member.get("reserved_until") else {"claimed": "c", "scheduled": "s"}.get(was, "-")
            for member in gang(self.api, self.id)["members"]
            for was in [member["state"]]
        )

    @property
    def explained(self) -> Row:
        return self.api.row("explain_gang", gang=self.id)

    @property
    def ways(self) -> dict[str, Row]:
        """The ways out, by their names."""
        return {way["way"]: way for way in self.explained["ways"]}

    def start(self, nodes: list[Node] | None = None) -> list[Row]:
        """Let upkeep reserve room, and the nodes claim it; the claims."""
        return start(self.api, self.nodes if nodes is None else nodes, self.queue)

    def run(self, nodes: list[Node] | None = None) -> list[Row]:
        """Start it, and let upkeep see that it runs; the claims."""
        claims = self.start(nodes)
        reap(self.api)
        return claims

    def ready(self, claims: list[Row]) -> set[bool]:
        """Whether these members are told to begin."""
        return {self.api.row("gang_status", **token(claim))["ready"] for claim in claims}

    def complete(self, *claims: Row) -> None:
        """Complete claims, and let upkeep see it."""
        self._end("complete_lease", claims)

    def fail(self, *claims: Row) -> None:
        """Let claims fail, and upkeep see it."""
        self._end("fail_lease", claims, error={"message": "no"})

    def release(self, *claims: Row) -> None:
        """Release claims, and let upkeep see it."""
        self._end("release_lease", claims)

    def _end(self, function: str, claims: tuple[Row, ...], **more: Any) -> None:
        for claim in claims:
            self.api.rows(function, **token(claim), **more)
        reap(self.api)

    def cancel(self) -> None:
        """Cancel it, and let upkeep see it."""
        self.api.rows("cancel_gang", gang=self.id)
        reap(self.api)
