"""The planner's solvers on a made-up fleet: that the question runs, and what it makes up."""

from benchmarks.core.run import Run
from lab.planner.made_up import Fleet
from lab.planner.question import solvers
from tests.benchmarks.asking import ask


def test_a_fleet_is_as_large_as_it_should_be() -> None:
    fleet = Fleet(nodes=50, kinds=5, classes=20, pending=300, used=0.5)
    pools, demands = fleet.made(1)
    assert fleet.made(1) == (pools, demands)
    assert (len(pools), len(demands)) == (5, 20)
    assert sum(demand.count for demand in demands) == 300
    assert 0.5 * 400 < sum(pool.devices_with_room for pool in pools) < 400


def test_the_question(run: Run) -> None:
    sizes = ["--nodes", "20", "--kinds", "4", "--classes", "10", "--pending", "60", "--seeds", "1"]
    sizes += ["--gangs", "8", "--racks", "1", "--leases", "12"]
    sizes += ["--kinds-of-leases", "5", "--places", "4"]
    [answer] = ask(solvers, run, *sizes)
    assert [figure.case for figure in answer.figures] == [
        "prices: 4 kinds, 60 leases",
        "gangs: 8, 1 racks",
        "leases: 12 of 5 classes, 4 nodes",
    ]
    prices, gangs, leases = answer.figures
    assert prices.value.median > 0
    assert gangs.more["GPUs"].median > 0
    assert gangs.more["gain %"].median >= 0
    assert leases.value.median > 0
    assert leases.more["saved %"].least >= 0
