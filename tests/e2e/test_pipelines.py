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
from datetime import date, timedelta
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


def test_gpu_training_publishes_no_bad_model(floor: Floor) -> None:
    run = floor.run(rounds=3)
    assert floor.states(run)["publish"] == "condition"
    assert floor.ended(run) == ("completed", "not good enough")


def test_nightly_etl_runs_once_a_night(floor: Floor) -> None:
    run = floor.module.submit(floor.client)
    assert floor.module.submit(floor.client) == run
    due = [name for name, step in floor.steps(run).items() if step.state == "running"]
    assert due == ["orders", "prices", "returns"]
    floor.drain()
    assert floor.module.submit(floor.client) == run
    assert floor.module.submit(floor.client, date(2030, 2, 1)) != run
    assert floor.ran == ["orders", "prices", "returns", "stage", "write", "tell"]
    assert floor.ended(run) == ("completed", {"income": 300, "without": []})
    assert floor.runs["tell"].result == "2030-01-31: 300 earned"


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


def test_nightly_etl_tells_of_a_night_without_a_report(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(floor.module.SOURCES, "orders")
    run = floor.run()
    assert floor.states(run) == {
        "orders": "failed", "prices": "completed", "returns": "completed", "load": "parent_failed",
        "tell": "completed",
    }  # fmt: skip
    assert floor.runs["tell"].result == "2030-01-31: no report"


def test_nightly_etl_retries_what_failed_in_the_nested_run(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delitem(floor.module.WAREHOUSE, "reports")
        run = floor.module.submit(floor.client)
        floor.drain()
    assert floor.states(run)["load"] == "nested_failed"
    assert floor.runs["tell"].result == "2030-01-31: no report"
    floor.client.retry_workflow_run(run, mode="failed_and_downstream")
    floor.ran.clear()
    floor.drain()
    assert floor.ran == ["write", "tell"]
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


def test_human_approval_is_refused(floor: Floor) -> None:
    run = floor.run()
    floor.module.decide(floor.client, run, approved=False, by="bob")
    floor.drain()
    assert floor.runs["refuse"].result == "refused by bob"
    assert floor.states(run)["pay"] == "condition"


def test_human_approval_is_refused_when_nobody_answers(floor: Floor) -> None:
    floor.module.submit(floor.client)
    floor.drain(scheduled=True)
    assert floor.runs["refuse"].result == "refused by nobody within 3 days"


def test_human_approval_is_not_asked_for_little(floor: Floor) -> None:
    run = floor.run(1)
    assert floor.ran == ["assess", "pay_small"]
    assert floor.states(run)["refuse"] == "parent_skipped"
    assert floor.ended(run)[0] == "completed"


def test_data_residency_keeps_raw_data_on_the_banks_machine(floor: Floor) -> None:
    run = floor.run()
    assert floor.on["ingest"] == floor.on["anonymise"] == "eu-bank-1"
    assert floor.fleet[floor.on["totals"]].spec.labels["region"] == "us"
    assert floor.ended(run) == ("completed", "3 accounts, median 70")
    assert {lease.tenant for lease in floor.client.list_leases()} == {"bank"}
    totals = floor.runs["totals"].claim.params
    assert totals == {"balances": [40, 70, 500]}  # no names leave


def test_data_residency_waits_rather_than_leaving(floor: Floor) -> None:
    floor.client.cordon_node(floor.fleet["eu-bank-1"].node_id)
    run = floor.run()
    assert floor.ran == []
    [ingest, *_] = floor.module.pipeline.check(floor.client)
    assert (ingest.nodes_matching, ingest.code) == (0, "node_draining")
    assert floor.states(run)["ingest"] == "running"


def test_data_residency_keeps_others_off_the_banks_machine(floor: Floor) -> None:
    assert "eu-bank-1" not in floor.fleet.matching({"require": [{"tags": {"region": "eu"}}]})
    own = floor.module.own_machine
    assert floor.fleet.matching(own) == {"eu-bank-1"}


def test_build_test_deploy_withdraws_what_the_canary_dislikes(floor: Floor) -> None:
    run = floor.run(floor.module.DIVIDES)
    assert (floor.runs["canary"].result, floor.ran[-1]) == ({"error_rate": 0.2}, "withdraw")
    assert floor.states(run)["deploy"] == "condition"
    assert floor.states(run)["roll_back"] == "parent_skipped"
    assert floor.ended(run)[0] == "completed"


def test_build_test_deploy_rolls_back_what_breaks(floor: Floor) -> None:
    run = floor.run(disk_full=True)
    assert floor.runs["roll_back"].result == "the release before, because of the deployment"
    assert floor.ended(run)[0] == "failed"


def test_build_test_deploy_stops_at_a_failed_test(floor: Floor) -> None:
    run = floor.run("def handle(n):\n    return n + n")
    assert floor.ran[0] == "build"
    assert set(floor.ran[1:]) <= {"test_amd64", "test_arm64"}
    assert floor.states(run)["canary"] in ("parent_failed", "run_failed")
    assert floor.ended(run)[0] == "failed"


def test_transcoding_has_a_preview_before_all_renditions(floor: Floor) -> None:
    run = floor.run()
    assert floor.ran == ["probe", "av1", "preview", "thumbnail", "h264", "package"]
    assert floor.runs["preview"].result == "av1, 32 wide"
    assert {name: floor.on[name] for name in ("av1", "h264", "thumbnail")} == {
        "av1": "us-cpu-2", "h264": "us-video-1", "thumbnail": "us-arm-1",
    }  # fmt: skip
    state, sizes = floor.ended(run)
    assert state == "completed"
    assert sizes["thumbnail"] < sizes["av1"] < sizes["h264"]


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


def test_transcoding_of_what_is_no_frame_renders_nothing(floor: Floor) -> None:
    run = floor.run(width=7)
    assert floor.ran == ["probe"]
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


def test_sweep_gives_each_trial_a_gpu_of_its_own(floor: Floor) -> None:
    floor.module.submit(floor.client)
    run_one(floor.client, floor.module.app, node=floor.fleet)
    held = [floor.fleet.claim("us-gpu-1", "sweep") for _ in range(5)]
    assert held.pop() is None
    devices = [claim.assignment.gpus[0].index for claim in held if claim and claim.assignment]
    assert sorted(devices) == [0, 1, 2, 3]


def test_sweep_fails_when_most_trials_diverge(floor: Floor) -> None:
    run = floor.run(1.5, 2.5, 3.5)
    assert floor.states(run)["trials"] == "items_failed"
    assert floor.ended(run)[0] == "failed"


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


def test_order_processing_packs_where_the_stock_is(floor: Floor) -> None:
    run = floor.module.submit(floor.client, steps={"reserve": {"affinity_tags": {"region": "eu"}}})
    floor.module.decide(floor.client, run)  # before the step waits: it is kept
    floor.drain()
    region = {step: floor.fleet[node].spec.labels["region"] for step, node in floor.on.items()}
    assert region == {"reserve": "eu", "pack": "eu"}


def test_order_processing_puts_back_what_nobody_pays(floor: Floor, clock: Clock) -> None:
    run = floor.run()
    clock.advance(timedelta(days=2))
    floor.drain()
    assert floor.ran == ["reserve", "put_back"]
    assert floor.runs["put_back"].result == "3 items are back: nobody has paid"
    assert floor.states(run) == {
        "reserve": "completed", "paid": "timeout", "pack": "parent_skipped",
        "put_back": "completed", "two_weeks": "parent_skipped", "review": "parent_skipped",
    }  # fmt: skip
    assert floor.ended(run) == ("completed", None)


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
