"""What a placement may cost to judge, and which patterns it may have."""

import json
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from hwqueue.testing import Clock, install_clock
from tests.calls import TASK, Row
from tests.counted import counting
from tests.fix_db import fresh_database
from tests.plans.explain import explained
from tests.sql.api import Api, Node, outlive

pytestmark = pytest.mark.thorough


OTHERS = {"leases": {"labels": {"app": "x"}}, "domain": "node"}
NODES = 12


def pattern(number: int, size: int = 62) -> Row:
    """A pattern of this size that every host name meets, another one for each number."""
    return {"label": "host", "op": "regexp", "values": [f"(n{number})?".ljust(size, "|")]}


def dear(number: int) -> Row:
    """A placement with as many patterns as one may have, and nearly as large ones."""
    return {"require": [pattern(8 * number + each) for each in range(8)]}


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A database of the test's own: what others left to be judged would be counted."""
    with fresh_database(server_dsn, template) as made:
        yield made


@pytest.fixture
def fleet(api: Api) -> list[Node]:
    """Nodes that are no two alike, each of which has judged what there was."""
    made = [api.node(labels={"host": f"n{number}"}) for number in range(NODES)]
    for node in made:
        api.claim(node, api.queue())
    return made


SHORT: Row = {"label": "kernel", "op": "version", "values": [">= 5.15"]}
PATTERNS = {"require": [pattern(number, 10) for number in range(9)]}
SIZES = {"require": [pattern(0, 200), pattern(1, 200), pattern(2, 101)]}
WRITTEN_OUT = {"require": [{"label": "h", "op": "regexp", "values": ["(abcdefghij){26}"]}] * 2}
RANGES = {
    "require": [
        {"label": "v", "op": op, "values": [", ".join(["> 1.0.0"] * 30)]} for op in ("version", "semver")
    ]
}
EXPRS = {
    "require": [{"any": [[{"label": f"{each}{n}", "op": "exists"}] for each in "abc"]} for n in range(67)]
}
REFUSED = [
    ("patterns", 8, PATTERNS),
    ("patterns", 8, {"prefer": [{"when": each} for each in PATTERNS["require"]]}),
    ("patterns", 8, {"require": [{"any": [[each] for each in PATTERNS["require"]]}]}),
    ("pattern_chars", 500, SIZES),
    ("pattern_chars", 500, WRITTEN_OUT),
    ("pattern_chars", 500, RANGES),
    ("expressions", 200, EXPRS),
]


@pytest.mark.parametrize(("what", "limit", "placement"), REFUSED)
def test_a_placement_that_costs_too_much_is_refused(api: Api, what: str, limit: int, placement: Row) -> None:
    queue, options = api.queue(), {"placement": placement}
    lease = api.spawn(queue)
    batch = [{"task": TASK}, {"task": TASK, "options": options}]
    for function, field, arguments in (
        ("spawn_lease", "options.placement", {"queue": queue, "task": TASK, "options": options}),
        ("spawn_leases", "options.placement", {"queue": queue, "leases": batch}),
        ("update_lease", "changes.placement", {"lease": lease, "changes": options}),
        ("match_nodes", "placement", options),
        ("match_page", "placement", options),
        ("match_groups", "placement", options),
    ):
        refusal = api.refused("QHC03", function, **arguments)
        assert (refusal.field, refusal.detail["limit"]) == (field, limit)
        assert refusal.detail[what] > limit
        assert str(limit) in refusal.hint
        assert field in refusal.message


def test_patterns_are_counted_before_one_is_compiled(api: Api) -> None:
    """Else 700 of them would be compiled to say that they are too many."""
    broken = {"label": "host", "op": "regexp", "values": ["[[:none:]]"]}
    options = {"placement": {"require": [broken, *PATTERNS["require"]]}}
    refusal = api.refused("QHC03", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert refusal.detail["patterns"] == 10


def test_what_parts_ask_together_is_counted_together(api: Api) -> None:
    """The placement and the shorthands each stay below the limit."""
    exprs = [{"label": f"l{n}", "op": "exists"} for n in range(100)]
    tags = {f"t{n}": n for n in range(101)}
    options = {"placement": {"require": exprs}, "affinity_tags": tags}
    refusal = api.refused("QHC03", "spawn_lease", queue=api.queue(), task=TASK, options=options)
    assert (refusal.field, refusal.detail["expressions"]) == ("options", 201)


def beside_others(pattern: Row) -> list[tuple[str, Row]]:
    """Placements whose pattern is judged by every claim again, for what they ask about others."""
    spread = {"domain": "rack", "select": {"same": "task"}}
    return [
        ("prefer", {"prefer": [{"when": OTHERS}, {"when": pattern}]}),
        ("prefer", {"prefer": [{"when": pattern}], "spread": [spread | {"targets": []}]}),
        ("require", {"require": [{"any": [[OTHERS], [pattern]]}]}),
        ("require", {"require": [pattern], "spread": [spread | {"max_skew": 1}]}),
    ]


def test_patterns_that_every_claim_would_judge_again_are_short(api: Api, queue: str) -> None:
    for part, placement in beside_others(pattern(0)):
        options = {"placement": placement}
        refusal = api.refused("QHC03", "spawn_lease", queue=queue, task=TASK, options=options)
        assert refusal.field == f"options.placement.{part}"
    for _, placement in beside_others(SHORT):
        api.spawn(queue, placement=placement)


@pytest.mark.parametrize("placement", [dear(0), SIZES | {"require": SIZES["require"][:2]}])
def test_what_the_limits_allow_is_accepted(api: Api, placement: Row) -> None:
    api.spawn(api.queue(), placement=placement)


def test_a_claim_judges_batches_of_what_they_cost(api: Api, fleet: list[Node]) -> None:
    """One while it finds something to run, else eight: by the profile and the kinds of node."""
    queue, other = api.queue(), api.queue()

    def claimed() -> tuple[int, list[UUID]]:
        with counting(api.conn) as calls:
            leases = api.claimed(fleet[0], other)
        return calls["label_holds"], leases

    for number in range(80):
        api.spawn(queue, placement=dear(number))
    plain = api.spawn(other)
    batch = 4 * 8 * (1 + NODES)
    judged, leases = claimed()
    assert (0 < judged <= 8 * batch, leases) == (True, [])
    while not leases:
        judged, leases = claimed()
    assert leases == [plain]
    for number in range(80, 90):
        api.spawn(queue, placement=dear(number))
    plain = api.spawn(other)
    judged, leases = claimed()
    assert (0 < judged <= batch, leases) == (True, [plain])


def test_views_give_up_on_what_costs_much(api: Api, queue: str, fleet: list[Node]) -> None:
    """Claims judge it in the end."""
    leases = {api.spawn(queue, placement=dear(number)) for number in range(80)}
    with counting(api.conn) as calls:
        rows = api.rows("pending_reasons", queue=queue)
    assert len(rows) == 80
    assert calls["label_holds"] <= 100_000 // 186 * NODES
    assert any(row["nodes_matching"] is None for row in rows)
    got = set[UUID]()
    for _ in range(100):
        got |= set(api.claimed(fleet[0], queue, qty=100))
    assert got == leases


def test_an_older_class_is_judged_by_a_claim_and_not_by_upkeep(api: Api, fleet: list[Node]) -> None:
    """One that is older than the limits, and has 300 patterns."""
    queue = api.queue()
    lease = api.spawn(queue, placement=dear(0))
    exprs = json.dumps([pattern(number) for number in range(300)])
    api.conn.execute(
        """
        update hwqueue.placement_class c
        set required = %s::jsonb, placement = jsonb_build_object('require', %s::jsonb), cost = %s
        from hwqueue.lease l where l.lease_id = %s and c.class_id = l.class_id
        """,
        [exprs, exprs, 300 * (1 + 3 * 62), lease],
    )
    for _ in range(2):
        with counting(api.conn) as calls:
            api.rows("reap")
        assert calls["label_holds"] <= 300
    with counting(api.conn) as calls:
        assert api.claimed(fleet[0], queue) == [lease]
    assert calls["label_holds"] <= 2 * 300


def test_upkeep_judges_little_at_a_time_and_does_its_work(api: Api, fleet: list[Node]) -> None:
    clock: Clock = install_clock(api.conn)
    queue, short = api.queue(), api.queue(claim_timeout=1)
    api.spawn(short)
    assert api.claim(fleet[0], short)
    for number in range(40):
        api.spawn(queue, placement=dear(number))
    judged = 0
    for _ in range(3):
        clock.advance(timedelta(seconds=61))
        with counting(api.conn) as calls:
            api.rows("reap")
        judged += calls["label_holds"]
    ahead = 40 * 8 * NODES  # patterns of each class for each kind of node, once
    assert judged <= 3 * 2500 + ahead
    row = api.conn.execute("select count(*) from hwqueue.claim").fetchone()
    assert row == (0,)


def test_a_term_is_checked_without_the_patterns_beside_it(api: Api, queue: str, fleet: list[Node]) -> None:
    api.running(queue, fleet[0], labels={"app": "x"})
    require = [*dear(0)["require"], OTHERS]
    api.spawn(queue, placement={"require": require}, labels={"app": "y"})
    outlive(api.conn)
    while not api.claim(fleet[0], queue):
        api.rows("reap")
    api.spawn(queue, placement={"require": require}, labels={"app": "y"})
    with counting(api.conn) as calls:
        assert api.claim(fleet[0], queue)
    assert calls["expr_reason"] > 0
    assert calls["label_holds"] == 0


def test_a_plain_spawn_asks_for_nothing_more(api: Api, queue: str) -> None:
    api.spawn(queue)
    with explained(api.conn) as work:
        api.spawn(queue)
    assert len(work.plans) == 11  # the last one reads what upkeep knows of the class
    assert len(work.scans("placement_class")) == 1


REFUSED_PATTERNS = [
    r"(?=a)b",
    r"[\]]?(?=a)b[x]?",
    r"[\]]?(a{32}){32}[x]?",
    r"[\]]?a{255}[x]?",
    r"([[=a=])]a{32}){32}",
    r"(.?.?.?.?.?.?){0,32}" * 9,
    r"(a|b|.?){0,32}" * 12,
    r"(.*a){0,32}" * 16,
    r"(.*a){32}" * 18,
    r"[\]]?" + r"(.{0,32}){0,32}" * 8 + r"[x]?",
    r"((a{2})){2}",
    r"((a{2}b)c){3}",
    r"(a|(b|c{2})d){2,}",
    r"a\1",
    r"x{",
    r"(a",
    r"[a",
    r"***=x",
    r"a{33}",
    r"a{1,33}",
    r"a{32,}b",
    "a" * 201,
]
ACCEPTED = [
    r"[\w]+",
    r"^foo",
    r"a{2,}b",
    r"(ab){3}",
    r"[[:alpha:]]+x",
    r"[]a]+",
    r"[^]a]",
    r"a{0}",
    r"a{32}",
    r"([a-z]+-){2}v\d{1,3}",
    r"(a{2}b)c{3}",
    r"((a{2}))",
    r"a{2}|b{3}",
    r"\[x\]{2}",
    r"[(?=]{3}",
    "a" * 200,
]


def regexp(pattern: str) -> Row:
    """A placement that asks for a label of this pattern."""
    return {"require": [{"label": "name", "op": "regexp", "values": [pattern]}]}


@pytest.mark.parametrize("pattern", REFUSED_PATTERNS)
def test_refused(api: Api, pattern: str) -> None:
    api.conn.execute("set statement_timeout = '5s'")  # compiling some of them would take minutes
    options = {"placement": regexp(pattern)}
    refusal = api.refused("QHC03", "spawn_lease", queue=api.queue(), task="t", options=options)
    assert refusal.field == "options.placement.require[0].values[0]"


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_accepted(api: Api, pattern: str) -> None:
    assert api.state(api.spawn(api.queue(), placement=regexp(pattern))) == "pending"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [(r"[]a]+$", "xa]"), (r"^([a-z]+-){2}v\d{1,3}$", "gpu-node-v12"), (r"^[(?=]{3}$", "(?=")],
)
def test_accepted_ones_match(api: Api, queue: str, pattern: str, name: str) -> None:
    lease = api.spawn(queue, placement=regexp(pattern))
    assert api.claim(api.node(labels={"name": "other"}), queue) == []
    assert api.claimed(api.node(labels={"name": name}), queue) == [lease]
