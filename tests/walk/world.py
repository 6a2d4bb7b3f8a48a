"""What a world is, how it is made, and what its leases and nodes may ask for and have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.direct import Direct
from tests.walk import steps as s
from tests.walk.ground import Commits
from tests.walk.names import QUEUE, gang_id, lease_id, node_id
from tests.walk.seen import Seen

Options = Mapping[str, Any]
# what a call must not do, whichever it is: the state before it and after it
Promise = Callable[[Seen, Seen], list[str]]
_POLICY: Options = {
    "max_attempts": 2,
    "claim_timeout": 30,
    "retry": {"kind": "fixed", "base": 5, "jitter": 0},
    "patience": 0,
    # what a tick does to gangs is told from what has room now
    "earmarks": 0,
    # scores that only preferences decide
    "tuning": {"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0},
}


@dataclass(frozen=True)
class World:
    """What there is at the beginning, and the calls that may be made.

    `memory`: how many seconds something may be past before it no longer matters how long. `near`:
    how many calls from the beginning are walked in every run of the tests. `gangs`: their options,
    `members` with them. `tenants`: the tier of each. `first`: calls that were made before the walk
    begins. `promises`: what must hold of every call. `is_upkeeps`: it rests on what upkeep leaves to
    calls whose transaction has no id yet, so savepoints cannot walk it. `is_slow`: even near its
    beginning it is walked by `make test-slow` and `make walk` alone.
    """

    name: str
    nodes: Mapping[str, Options]
    leases: Mapping[str, Options]
    steps: Sequence[s.Step]
    policy: Options = field(default_factory=dict)
    memory: float = 0
    near: int = 3
    gangs: Mapping[str, Options] = field(default_factory=dict)
    limits: Mapping[str, Options] = field(default_factory=dict)
    tenants: Mapping[str, str] = field(default_factory=dict)
    first: Sequence[s.Step] = ()
    promises: Sequence[Promise] = ()
    is_upkeeps: bool = False
    is_slow: bool = False

    def build(self, direct: Direct) -> None:
        """Make it, in transactions that have ended before the walk: terms are published then."""
        direct.create_queue(QUEUE, {**_POLICY, **self.policy})
        for name, spec in self.nodes.items():
            always = {"name": name, "instance_id": "first", "heartbeat_timeout": 3600}
            direct.register(node_id(name), {**always, **spec})
        for name, spec in self.limits.items():
            direct.rows("create_limit", name=name, spec=spec)
        for name, tier in self.tenants.items():
            direct.rows("set_tenant", name=name, changes={"tier": tier})
        _spawn(direct, self.leases)
        _spawn_gangs(direct, self.gangs)
        if self.gangs:
            direct.rows("pause_queue", queue=QUEUE)  # so that none is assembled yet
        direct.settle_terms()
        if self.gangs:
            direct.rows("resume_queue", queue=QUEUE)
        for step in self.first:
            step.make(direct, Commits(direct.conn).look())


def _spawn(direct: Direct, leases: Mapping[str, Mapping[str, Any]]) -> None:
    """Spawn the leases of a world; `deadline_in`: seconds from now."""
    row = direct.conn.execute("select hwqueue.clock()").fetchone()
    assert row is not None
    for name, options in leases.items():
        given = {"lease_id": str(lease_id(name))} | dict(options)
        if (after := given.pop("deadline_in", None)) is not None:
            given["deadline"] = (row[0] + timedelta(seconds=after)).isoformat()
        direct.spawn(QUEUE, given)


def _spawn_gangs(direct: Direct, gangs: Mapping[str, Options]) -> None:
    """Spawn gangs; `members`: names of one letter, `each`: what each of them asks."""
    for name, options in gangs.items():
        given: dict[str, Any] = {"gang_id": str(gang_id(name)), "hold": 1, **options}
        each = given.pop("each")
        members = [{**each, "lease_id": str(lease_id(one))} for one in given.pop("members")]
        direct.spawn_gang(QUEUE, members, **given)


def every(kind: type[s.OfLease], leases: str) -> list[s.Step]:
    """The same call about each of the leases, which have names of one letter."""
    return [kind(lease) for lease in leases]


def leases_of(app: str, **more: Any) -> dict[str, Any]:
    """An expression about leases with that label, by rack."""
    return {"leases": {"labels": {"app": app}}, "domain": "rack", **more}


def require(*exprs: dict[str, Any], app: str = "") -> Options:
    """A lease with these requirements, and that label."""
    return {"placement": {"require": list(exprs)}, "labels": {"app": app} if app else {}}


def spread(domain: str, placement: Options | None = None, **limit: int) -> Options:
    """A lease of app x that is spread over such places, and asks that besides."""
    rule = {"domain": domain, "select": {"labels": {"app": "x"}}, **limit}
    return {"labels": {"app": "x"}, "placement": {"spread": [rule], **(placement or {})}}


IN_ZONE: Options = {"require": [{"tags": {"zone": "a"}}]}


def needs(**resources: int) -> Options:
    """A lease that asks for these amounts."""
    return {"placement": {"resources": resources}}


def gpus(count: int, of: str) -> Options:
    """A node with GPUs."""
    ids = [str(node_id(f"{of}-gpu-{number}")) for number in range(count)]
    return {"gpus": [{"resource_id": one, "model": "T4", "memory_mib": 16384} for one in ids]}
