"""check_regexp: patterns that could take for ever are refused, however they hide it."""

import pytest

from tests.calls import Row
from tests.sql.api import Api

pytestmark = pytest.mark.thorough

REFUSED = [
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


@pytest.mark.parametrize("pattern", REFUSED)
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
