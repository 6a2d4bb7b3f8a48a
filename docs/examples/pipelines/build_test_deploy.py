"""Build, test on two architectures, a canary, then either all machines or back.

What the canary measures decides with `run_if`; a deployment that breaks is rolled back by a step
that comes after its failure.
"""

import hashlib
from typing import Any
from uuid import UUID

from hwqueue import App, Client, Reject, WorkflowBuilder
from hwqueue.workflow import failed, result, run_input

app = App()


@app.task("ci.build", queue="ci")
def build(source: str) -> dict[str, str]:
    compile(source, "service.py", "exec")  # a SyntaxError fails the step
    return {"source": source, "digest": hashlib.sha256(source.encode()).hexdigest()[:12]}


@app.task("ci.test", queue="ci")
def test(image: dict[str, str], cases: list[list[int]]) -> int:
    scope: dict[str, Any] = {}
    exec(image["source"], scope)
    for given, expected in cases:
        if scope["handle"](given) != expected:
            raise Reject(f"handle({given}) is {scope['handle'](given)}, not {expected}")
    return len(cases)


@app.task("ci.canary", queue="ci")
def canary(image: dict[str, str], requests: list[int]) -> dict[str, float]:
    scope: dict[str, Any] = {}
    exec(image["source"], scope)
    wrong = 0
    for request in requests:
        try:
            scope["handle"](request)
        except ArithmeticError:
            wrong += 1
    return {"error_rate": wrong / len(requests)}


@app.task("ci.deploy", queue="ci")
def deploy(digest: str, disk_full: bool) -> str:
    if disk_full:
        raise Reject("no space left on device")
    return f"{digest} everywhere"


@app.task("ci.restore", queue="ci")
def restore(why: str) -> str:
    return f"the release before, because of {why}"


image = {"image": result("build")}
errors = result("canary", "error_rate")

pipeline = (
    WorkflowBuilder("build_test_deploy")
    .with_options(queue="ci")
    .with_affinity(region="us")
    .task("build", build, params={"source": run_input("source")})
    .task(
        "test_amd64",
        test,
        params={**image, "cases": run_input("cases")},
        affinity_tags={"arch": "amd64"},
        max_attempts=1,
    )
    .task(
        "test_arm64",
        test,
        params={**image, "cases": run_input("cases")},
        affinity_tags={"arch": "arm64"},
        max_attempts=1,
    )
    .task(
        "canary",
        canary,
        after=["test_amd64", "test_arm64"],
        params={**image, "requests": run_input("requests")},
        affinity_tags={"stage": "canary"},
    )
    .task(
        "deploy",
        deploy,
        params={"digest": result("build", "digest"), "disk_full": run_input("disk_full")},
        run_if=errors < 0.1,
    )
    .task("withdraw", restore, params={"why": "the canary"}, run_if=errors >= 0.1)
    .task("roll_back", restore, after=failed("deploy"), params={"why": "the deployment"})
    .build()
)

GOOD = "def handle(n):\n    return n * n"
DIVIDES = "def handle(n):\n    return n * n * (n - 5) // (n - 5)"  # by zero, once in a while


def submit(client: Client, source: str = GOOD, *, disk_full: bool = False) -> UUID:
    about = {"cases": [[2, 4], [3, 9]], "requests": [1, 2, 3, 4, 5], "disk_full": disk_full}
    return pipeline.submit(client, {"source": source, **about}).run_id
