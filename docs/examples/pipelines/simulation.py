"""Simulations with two solver licences, beside their mesh; each result is stored in two racks."""

import json
from typing import Any
from uuid import UUID

from hwqueue import App, Client, Placement, Step, Workflow, label
from hwqueue.workflow import near, result, run_input

app = App()


@app.task("heat.mesh", queue="sim")
def mesh(points: int) -> list[float]:
    return [0.0] * (points // 2) + [100.0] + [0.0] * (points // 2)


@app.task("heat.solve", queue="sim", placement=Placement().resources(custom={"solver_licence": 1}))
def solve(rod: list[float], conductivity: float, steps: int) -> list[float]:
    """Heat along a rod that starts hot in its middle."""
    for _ in range(steps):
        padded = [rod[0], *rod, rod[-1]]
        rod = [
            here + conductivity * (left - 2 * here + right)
            for left, here, right in zip(padded, rod, padded[2:], strict=False)
        ]
    return rod


@app.task("heat.compare", queue="sim")
def compare(rods: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(max(rod), 2) for name, rod in rods.items()}


@app.task("heat.store", queue="sim")
def store(peaks: dict[str, float]) -> int:
    return len(json.dumps(peaks))


def solving(name: str, conductivity: float) -> Step:
    return Step(
        name,
        solve,
        params={"rod": result("mesh"), "conductivity": conductivity, "steps": run_input("steps")},
        near=near("mesh", "label:scratch", mode="require"),  # the mesh is a file there
    )


names = {"copper": 0.4, "iron": 0.2, "wood": 0.05}

pipeline = Workflow(
    name="simulation",
    queue="sim",
    tasks=[
        Step(
            "mesh",
            mesh,
            params={"points": run_input("points")},
            placement=Placement().require(label("scratch").exists()),
        ),
        *(solving(name, conductivity) for name, conductivity in names.items()),
        Step("compare", compare, params={name: result(name) for name in names}),
        Step("store", store, params=result("compare"), near=near("mesh", "rack", mode="require")),
        Step(
            "replicate",
            store,
            after="store",
            params=result("compare"),
            near=near("store", "rack", mode="require", away=True),
        ),
    ],
    result=result("compare"),
)


def submit(client: Client, **options: Any) -> UUID:
    return pipeline.submit(client, {"points": 20, "steps": 50}, **options).run_id
