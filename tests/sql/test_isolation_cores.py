"""Whole cores: which ones a lease gets, and that nobody else is ever on them."""

import pytest

from tests.calls import Row
from tests.isolated import spawn
from tests.sql.api import Api, token
from tests.sql.isolation_support import asking, assigned, core_use, cores, held, isolating, run, why


@pytest.mark.thorough
def test_what_an_assignment_says(api: Api) -> None:
    node = isolating(api, 2, 2, capacity={"cpu_milli": 4000})
    assert assigned(api, node, asking("whole_core", cpu_milli=1001)) == {
        "cpu_milli": 2000,
        "cpu_isolation": "whole_core",
        "cores": [0, 1],
        "core_milli": [1000, 1000],
        "numa": [0],
        "cpus": [0, 1, 10, 11],
    }
    assert assigned(api, node, asking("best_effort", cpu_milli=700)) == {
        "cpu_milli": 700,
        "cpu_isolation": "best_effort",
        "cores": [2],
        "core_milli": [700],
        "numa": [1],
        "cpus": [20, 21],
    }
    assert api.used(node)["used"]["cpu_milli"] == 2700
    assert core_use(api, node) == [1000, 1000, 700, 0]


@pytest.mark.parametrize(("milli", "taken"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2999, 3), (3000, 3)])
@pytest.mark.parametrize("cpu", ["whole_core", "strict_isolated"])
def test_how_many_cores(api: Api, cpu: str, milli: int, taken: int) -> None:
    node = isolating(api, 4)
    assert len(assigned(api, node, asking(cpu, cpu_milli=milli))["cores"]) == taken


def test_best_effort_never_lands_on_a_committed_core(api: Api) -> None:
    node = isolating(api, 2)
    whole = held(api, node, asking("whole_core"))
    assert assigned(api, node, asking(cpu_milli=900))["cores"] == [1]
    assert run(api, node, asking(cpu_milli=101)) is None
    assert assigned(api, node, asking(cpu_milli=100))["cores"] == [1]
    assert run(api, node, asking()) is None, "what asks for nothing runs somewhere, too"
    api.complete(whole)
    assert assigned(api, node, asking())["cores"] == [0]


def test_a_core_that_is_shared_is_not_committed(api: Api) -> None:
    """Of several cores an idle one is."""
    node = isolating(api, 1)
    least = held(api, node, asking())
    assert least["assignment"]["core_milli"] == [1]
    for cpu in ("whole_core", "strict_isolated"):
        assert why(api, node, asking(cpu)) == {"nodes_support_but_contended": False}
        several = isolating(api, 3)
        assert assigned(api, several, asking(cpu_milli=300))["cores"] == [0]
        assert assigned(api, several, asking(cpu, cpu_milli=2000))["cores"] == [1, 2]
    api.complete(least)
    held(api, node, asking("strict_isolated"))


def test_best_effort_takes_few_cores_and_leaves_the_least(api: Api) -> None:
    node = isolating(api, 4)
    given: list[tuple[int, list[int], list[int]]] = [
        (600, [0], [600]),
        (700, [1], [700]),  # did not fit on the first
        (300, [1], [300]),  # fills the second rather than the first
        (1400, [0, 2], [400, 1000]),  # a whole core, and the rest where it leaves the least
        (999, [3], [999]),
        (1, [3], [1]),
    ]
    for milli, on, amounts in given:
        assignment = assigned(api, node, asking(cpu_milli=milli))
        assert (assignment["cores"], assignment["core_milli"]) == (on, amounts)
    assert core_use(api, node) == [1000] * 4
    assert run(api, node, asking()) is None


def test_best_effort_is_spread_over_scraps_only_when_it_must(api: Api) -> None:
    node = isolating(api, 3)
    for milli in (600, 700, 800):
        assigned(api, node, asking(cpu_milli=milli))
    assert core_use(api, node) == [600, 700, 800]
    assignment = assigned(api, node, asking(cpu_milli=500))
    assert (assignment["cores"], assignment["core_milli"]) == ([0, 2], [400, 100])
    assert why(api, node, asking(cpu_milli=401)) == {"insufficient_capacity": False}
    assert core_use(api, node) == [1000, 700, 900]


def test_strict_takes_the_numa_node_with_the_fewest_that_suffice(api: Api) -> None:
    """And never crosses NUMA nodes."""
    node = isolating(api, 4, 2, 3)
    taken = [assigned(api, node, asking("strict_isolated", cpu_milli=n)) for n in (3000, 2000)]
    assert [one["numa"] for one in taken] == [[2], [1]]
    assert assigned(api, node, asking("strict_isolated", cpu_milli=3000))["numa"] == [0]
    assert why(api, node, asking("strict_isolated", cpu_milli=2000)) == {"nodes_support_but_contended": False}
    held(api, node, asking("strict_isolated"))
    two = isolating(api, 2, 2)
    assert why(api, two, asking("strict_isolated", cpu_milli=3000)) == {"insufficient_capacity": True}
    assert assigned(api, two, asking("whole_core", cpu_milli=3000))["numa"] == [0, 1]


def test_whole_cores_break_few_numa_nodes(api: Api) -> None:
    """What is left of broken ones first, then of one that nobody uses."""
    node = isolating(api, 4, 4, 4)
    for _ in range(2):
        assigned(api, node, asking("strict_isolated", cpu_milli=3000))
    assert core_use(api, node) == [1000] * 3 + [0] + [1000] * 3 + [0] + [0] * 4
    assert assigned(api, node, asking("whole_core", cpu_milli=2000))["cores"] == [3, 7]
    assert assigned(api, node, asking("whole_core", cpu_milli=4000))["cores"] == [8, 9, 10, 11]


def test_two_leases_in_one_claim(api: Api) -> None:
    """What fits is asked anew for each."""
    node, queue = isolating(api, 2), api.queue()
    leases = [spawn(api.conn, queue, asking("whole_core")) for _ in range(3)]
    rows = api.claim(node, queue, qty=10)
    assert [row["lease_id"] for row in rows] == leases[:2]
    assert [row["assignment"]["cores"] for row in rows] == [[0], [1]]


ENDS: list[tuple[str, Row]] = [
    ("complete_lease", {}),
    ("fail_lease", {"error": {}}),
    ("fail_lease", {"error": {}, "retry": False}),
    ("release_lease", {}),
]


@pytest.mark.parametrize("cpu", ["best_effort", "whole_core", "strict_isolated"])
def test_every_way_to_end_gives_the_cores_back(api: Api, cpu: str) -> None:
    node = isolating(api, 2, capacity={"cpu_milli": 2000})
    for function, more in ENDS:
        api.rows(function, **token(held(api, node, asking(cpu, cpu_milli=1500))), **more)
        assert core_use(api, node) == [0, 0]
        assert api.used(node)["used"]["cpu_milli"] == 0


@pytest.mark.parametrize("default", ["best_effort", "whole_core", "strict_isolated"])
def test_the_default_is_for_those_that_ask_nothing(api: Api, default: str) -> None:
    """Nodes without the classes count no cores."""
    node = isolating(api, 2, default_cpu_isolation=default)
    assert assigned(api, node, asking())["cpu_isolation"] == default
    explicit = assigned(api, node, asking("best_effort"))
    assert (explicit["cpu_isolation"], explicit["core_milli"]) == ("best_effort", [1])
    plain = api.node(cores=cores(2))
    assert held(api, plain, asking("best_effort", cpu_milli=10**6))["assignment"] is None
    assert why(api, plain, asking("whole_core")) == {"no_node_supports_class": True}


def test_adopted_work_takes_no_core_of_others(api: Api) -> None:
    node = isolating(api, 2)
    work = {"queue": api.queue(), "node": node.node_id, "task": "work"}
    held(api, node, asking("whole_core"))
    api.rows("adopt_lease", **work)
    assert core_use(api, node) == [1000, 1]
    options = {"placement": {"resources": {"cpu_milli": 1000}}}
    assert api.refused("QHA01", "adopt_lease", **work, options=options).field == "p_node"
