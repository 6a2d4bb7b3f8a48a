"""The pipelines of docs/examples/pipelines on made-up machines: what the page does not show of them.

`drain` runs one handler after the other, so orders of steps are certain. What has to do with leases
that run at the same time is claimed and held.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from hwqueue import Client
from hwqueue.testing import Clock, Fleet, Run, create_queues, drain, run_one
from hwqueue.types import WorkflowStep
from tests.e2e.programs import running
from tests.e2e.test_serve import BOUND_SECONDS, server
from tests.e2e.test_worker_examples import EXAMPLES, run_example
from tests.fix_db import strict_skip
from tests.shell_lines import fenced

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "pipelines"
PAGE = FOLDER.parents[1] / "use" / "workflows.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("fleet", "run"))


@dataclass(kw_only=True)
class Floor:
    """The machines, and what ran on them.

    Attributes:
        ran: The steps in their order, as often as they ran.
        on: The node where each ran last.
    """

    client: Client
    fleet: Fleet
    module: ModuleType
    ran: list[str] = field(default_factory=list)
    on: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    def drain(self, **options: Any) -> None:
        given = {"retries": True, "raises": False} | options
        for run in drain(self.client, self.module.app, node=self.fleet, **given):
            step = (run.claim.headers or {})["step"]
            self.ran.append(step)
            self.on[step] = run.node.name
            self.runs[step] = run

    def run(self, *given: Any, **options: Any) -> UUID:
        """Submit the pipeline, and drain what is due of it."""
        run_id: UUID = self.module.submit(self.client, *given, **options)
        self.drain()
        return run_id

    def steps(self, run_id: UUID) -> dict[str, WorkflowStep]:
        """The steps of a run, by name."""
        return {step.step: step for step in self.client.list_workflow_steps(run_id)}

    def states(self, run_id: UUID) -> dict[str, str]:
        """The state of each step; of one that was skipped the reason."""
        return {name: step.reason or step.state for name, step in self.steps(run_id).items()}

    def ended(self, run_id: UUID) -> tuple[str, Any]:
        run = self.client.get_workflow_run(run_id)
        return run.state, run.result


@pytest.fixture
def floor(dsn: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Floor]:
    """The machines, with the queues of the pipeline that the test's name begins with."""
    monkeypatch.syspath_prepend(FOLDER)
    [name] = [name for name in NAMES if request.node.name.startswith(f"test_{name}_")]
    module = importlib.import_module(name)
    with Client(dsn) as client:
        fleet = Fleet(client)
        importlib.import_module("fleet").add_machines(fleet)
        create_queues(client, module.app)
        yield Floor(client=client, fleet=fleet, module=module)
    for imported in (name, "fleet"):
        sys.modules.pop(imported)


def test_gpu_training_stays_in_the_region_of_the_submission(floor: Floor) -> None:
    run = floor.run(region="eu")
    assert floor.on["train"] == "eu-gpu-1"
    assert floor.on["score_even"] == floor.on["score_odd"] == "eu-cpu-2"
    assert floor.fleet[floor.on["prepare"]].spec.labels["region"] == "eu"
    assert floor.steps(run)["publish"].placement == {}  # it replaces what the run asks


def test_nightly_etl_reports_without_a_source(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(floor.module.SOURCES, "returns")
        run = floor.module.submit(floor.client)
        floor.drain()
    assert floor.ran.count("returns") == 3
    assert (floor.runs["write"].result, floor.ran[-1]) == ({"income": 330, "without": ["returns"]}, "tell")
    assert floor.ended(run) == ("failed", None)
    # it answers again in the morning
    floor.client.retry_workflow_run(run, mode="failed_and_downstream")
    floor.ran.clear()
    floor.drain()
    assert floor.ran == ["returns", "stage", "write", "tell"]
    assert floor.ended(run) == ("completed", {"income": 300, "without": []})


def test_human_approval_waits_without_a_slot(floor: Floor) -> None:
    run = floor.run()
    assert floor.ran == ["assess", "ask"]
    asked = floor.steps(run)["ask"]
    assert asked.lease_id is not None
    said = floor.client.explain_lease(asked.lease_id).headline
    assert said.startswith('suspended: its handler waits for signal "decided"')
    assert asked.lease_state == "scheduled"  # nobody has claimed it
    floor.module.decide(floor.client, run)
    floor.module.decide(floor.client, run)  # she clicks twice
    floor.drain()
    assert (floor.ran, floor.runs["pay"].result) == (["assess", "ask", "ask", "pay"], "320 paid back")
    assert floor.runs["ask"].result == {
        "ticket": "refund of 320?", "approved": True, "by": "ann",
    }  # fmt: skip
    assert floor.states(run) == {
        "assess": "completed", "pay_small": "condition", "ask": "completed", "pay": "completed",
        "refuse": "condition",
    }  # fmt: skip


def test_data_residency_keeps_raw_data_on_the_banks_machine(floor: Floor) -> None:
    run = floor.run()
    assert floor.on["ingest"] == floor.on["anonymise"] == "eu-bank-1"
    assert floor.fleet[floor.on["totals"]].spec.labels["region"] == "us"
    assert floor.ended(run) == ("completed", "3 accounts, median 70")
    assert {lease.tenant for lease in floor.client.list_leases()} == {"bank"}
    totals = floor.runs["totals"].claim.params
    assert totals == {"balances": [40, 70, 500]}  # no names leave


def test_transcoding_packages_what_could_be_rendered(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    floor.client.cordon_node(floor.fleet["us-video-1"].node_id)
    run = floor.run()
    assert "h264" not in floor.ran
    assert floor.states(run)["package"] == "waiting"
    h264 = floor.steps(run)["h264"].lease_id
    assert h264 is not None
    floor.client.cancel_lease(h264)
    floor.drain()
    assert set(floor.runs["package"].result) == {"av1", "thumbnail"}
    assert floor.ended(run)[0] == "failed"


def test_simulation_uses_two_licences_at_most(floor: Floor) -> None:
    run = floor.module.submit(floor.client)
    mesh = floor.fleet.claim("us-sim-1", "sim")
    assert mesh is not None
    rod = floor.module.mesh(20)
    floor.client.complete_lease(mesh.lease_id, mesh.claim_token, result=rod)
    held = [
        claim
        for _ in range(3)
        for name in ("us-cpu-1", "us-gpu-1", "us-sim-1", "eu-cpu-1")
        if (claim := floor.fleet.claim(name, "sim")) is not None
    ]
    assert len(held) == 2
    third = [name for name, step in floor.steps(run).items() if step.lease_state == "pending"]
    assert len(third) == 1
    waits = floor.steps(run)[third[0]].lease_id
    assert waits is not None
    assert "solver_licence" in floor.client.explain_lease(waits).headline
    for claim in held:
        floor.client.release_lease(claim.lease_id, claim.claim_token)
    floor.drain()
    assert floor.ended(run)[0] == "completed"


def test_map_reduce_has_four_shards_under_way(floor: Floor) -> None:
    floor.module.submit(floor.client)
    due = [1]
    while due[-1]:
        run_one(floor.client, floor.module.app, node=floor.fleet)
        due.append(len(floor.client.list_leases(state="pending")))
    assert due == [1, *[4] * 9, 3, 2, 1, 1, 1, 0]


def test_order_processing_packs_what_is_paid(floor: Floor, clock: Clock) -> None:
    run = floor.run(affinity_tags={"region": "eu"})
    assert floor.ran == ["reserve"]
    paid = floor.steps(run)["paid"]
    assert (paid.kind, paid.state, paid.lease_id) == ("wait", "running", None)
    floor.module.decide(floor.client, run)
    floor.module.decide(floor.client, run)  # the bank calls twice
    floor.drain()
    assert (floor.ran, floor.runs["pack"].result) == (["reserve", "pack"], {"parcels": 3, "pay_back": 20})
    assert floor.states(run)["put_back"] == "condition"
    assert floor.states(run)["two_weeks"] == "running"
    clock.advance(timedelta(days=14))
    floor.drain()
    assert floor.runs["review"].result == "how do you like your 3 parcels?"
    assert floor.ended(run) == ("completed", {"parcels": 3, "pay_back": 20})


def test_the_page_shows_all_pipelines_and_what_comes_out(dsn: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = dict(re.findall(r"^```text\n\$ python run\.py (\w+)\n(.*?)^```", page, re.M | re.S))
    assert sorted(shown) == NAMES
    for name in NAMES:
        path = f"../examples/pipelines/{name}.py"
        assert f"[{name}.py]({path})\n\n```{{literalinclude}} {path}\n" in page
    for name, lines in shown.items():
        done = subprocess.run(
            [sys.executable, "run.py", name],
            cwd=FOLDER, env={"HWQUEUE_DSN": dsn}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stderr, done.stdout) == ("", lines)


PROGRAM = EXAMPLES / "training_flow.py"


def blocks(kind: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Eleven pipelines")[0]
    return fenced(text, kind)


@contextmanager
def training_worker(dsn: str) -> Iterator[None]:
    """The worker of the page, in its folder."""
    [line] = blocks("shell")
    tags = '{"zone": "west", "gpu": true}'
    assert line == (f"hwqueue worker run --app training_flow:app --name gpu-1 --tags '{tags}'\n")
    words = ["worker", "run", "--app", "training_flow:app", "--name", "gpu-1", "--tags", tags]
    with running(dsn, *words, cwd=EXAMPLES, stderr=subprocess.DEVNULL) as process:
        yield
        process.terminate()
        process.wait(BOUND_SECONDS)


def test_what_the_page_says_works(dsn: str) -> None:
    if not any((Path(folder) / "curl").exists() for folder in os.get_exec_path()):
        strict_skip("curl is not installed")
    with server(dsn, "--auth", "tokens") as (_, url), training_worker(dsn):
        script = "\n".join(blocks("sh")).replace("http://localhost:8080", url)
        folder = Path(sys.executable).parent
        env = os.environ | {"HWQUEUE_DSN": dsn, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            env=env, cwd=EXAMPLES, capture_output=True, text=True, check=False,
            timeout=BOUND_SECONDS * script.count("\n"),  # only ends a hang: a bound for each line
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        ended = re.findall(r"of training version 1(?:, key \S+)?: (\w+)", done.stdout)
        assert ended == ["completed", "completed", "failed", "completed", "completed"]
        assert re.findall(r"of release version 1: (\w+)", done.stdout) == ["running", "completed"]
        assert "waits for signal approved until" in done.stdout
        assert '"created":false' in done.stdout
        assert "Reject: no such dataset: typo" in done.stdout
        assert "exit code 1" in done.stdout
        assert "event: ended" in done.stdout
        assert run_example(PROGRAM.name, dsn).splitlines() == [
            "completed {'model': 's3://films/prepared/model'}",
            "prepare completed 1",
            "train completed 1",
            "tell completed 1",
        ]
