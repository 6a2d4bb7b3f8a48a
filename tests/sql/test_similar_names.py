"""Names that no live node has: what an explanation says was probably meant."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api
from tests.sql.explained import actions, explain, explain_class, label
from tests.sql.isolation_support import devices
from tests.sql.placed import spawn_placed

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("lone")]


MOST = 2


def distance(one: str, other: str) -> int:
    """Edits between two texts, by the whole table of their prefixes."""
    rows = [list(range(len(other) + 1))]
    for i in range(1, len(one) + 1):
        row = [i]
        for j in range(1, len(other) + 1):
            best = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (one[i - 1] != other[j - 1]))
            if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
                best = min(best, rows[i - 2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def nearest(api: Api, name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant."""
    found: str | None = api.one("select hwqueue.nearest_name(%s, %s)", name, list(names))
    return found


few = st.text("abc", max_size=7)
read_only = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@read_only
@given(few | any_text, few | any_text, st.integers(0, 3))
@example("ca", "abc", 3)  # what was exchanged is not edited again
@example("abcdef", "badcfe", 3)
@example("x" * 64, "x" * 31 + "y" + "x" * 32, 1)
def test_the_distance_is_that_of_the_whole_table(api: Api, one: str, other: str, most: int) -> None:
    edits = distance(one, other)
    found = api.one("select hwqueue.edit_distance(%s, %s, %s)", one, other, most)
    assert found == (edits if edits <= most else None)


@read_only
@given(st.text("abcd", min_size=3, max_size=9), st.lists(st.text("abcd", min_size=3, max_size=9)))
def test_the_nearest_of_words_is_that_of_the_fewest_edits(api: Api, name: str, names: list[str]) -> None:
    most = min(MOST, len(name) // 3)
    close = [(distance(name, one), one) for one in names if one != name]
    fitting = sorted(each for each in close if each[0] <= most)
    assert nearest(api, name, names) == (fitting[0][1] if fitting else None)


def test_a_typing_error_is_close_and_another_thing_of_the_kind_is_not(api: Api) -> None:
    for name, meant in (
        *(("gpus", "gpu"), ("maill", "mail"), ("regoin", "region"), ("us-esat", "us-east")),
        *(("GPU", "gpu"), ("gpu_model", "gpu-model"), ("renders", "render"), ("drew", "draw")),
    ):
        assert nearest(api, name, ["far-from-it", meant]) == meant
        assert nearest(api, name, [name]) is None
    for name, other in (
        *(("H100", "A100"), ("us-east-1", "us-east-2"), ("us-east", "eu-east"), ("v1", "v2")),
        *(("zone-a", "zone-b"), ("us-east", "us-west"), ("mail", "male"), ("ab", "abc")),
    ):
        assert nearest(api, name, [other]) is None, (name, other)


def test_the_search_is_bounded(api: Api) -> None:
    assert nearest(api, "x" * 63 + "y", ["x" * 64]) == "x" * 64
    assert nearest(api, "x" * 64 + "y", ["x" * 64]) is None
    assert nearest(api, "x" * 64, ["x" * 65]) is None
    apart = [f"{chr(97 + n % 26)}{chr(97 + n // 26)}yyyy" for n in range(200)]  # of the same length
    assert nearest(api, "region", [*apart[:199], "regoin"]) == "regoin"
    assert nearest(api, "region", [*apart, "regoin"]) is None


CASES: list[tuple[Row, str]] = [
    *(
        ({"require": [rule]}, "label regoin, did you mean region?")
        for rule in (
            label("regoin", "us-east"),
            {"label": "regoin", "op": "exists"},
            {"any": [[label("regoin", "a")], [label("disk", "ssd")]]},
            {"tags": {"regoin": {"deep": 1}}},
            {"label": "region", "op": "in", "other_label": "regoin"},
        )
    ),
    ({"require": [label("region", "us-esat")]}, "label region=us-esat, did you mean us-east?"),
    ({"resources": {"licenses": 1}}, "resource licenses, did you mean license?"),
    ({"resources": {"gpus": 1}}, "resource gpus, did you mean gpu?"),
    ({"resources": {"cpu_mili": 1}}, "resource cpu_mili, did you mean cpu_milli?"),
]


def fleet(api: Api) -> None:
    """A node with labels, a countable and a device."""
    api.node(labels={"region": "us-east"}, capacity={"license": 2}, gpus=devices(None))


@pytest.mark.parametrize(("placement", "said"), CASES)
def test_explanations_and_reports_name_what_was_meant(api: Api, placement: Row, said: str) -> None:
    fleet(api)
    queue = api.queue()
    found = explain(api, lease := spawn_placed(api, queue, **placement))
    assert found["headline"].endswith(f"; no live node has {said}")
    assert actions(found)[0] == "correct"
    assert found["help"][0]["words"] == f"no live node has {said}"
    of_class = explain_class(api, lease)
    assert (of_class["headline"], of_class["help"]) == (found["headline"], found["help"])
    row = api.row("pending_reasons", queue=queue)
    assert row["message"].endswith(f"; no live node has {said}")


def test_only_live_nodes_are_asked(api: Api, clock: Clock) -> None:
    """But a name that a silent node has is no error."""
    api.node(labels={"region": "us-east", "zonne": "x"})
    lease = spawn_placed(api, api.queue(), require=[label("regoin", "us-east")])
    silent = spawn_placed(api, api.queue(), require=[label("zonne", "x")])
    assert "did you mean region?" in explain(api, lease)["headline"]
    clock.advance(timedelta(days=1))
    assert "did you mean" not in explain(api, lease)["headline"]
    api.node(labels={"zone": "a"})
    assert "did you mean" not in explain(api, lease)["headline"]
    found = explain(api, silent)
    assert found["code"] == "node_not_live"
    assert "correct" not in actions(found)
