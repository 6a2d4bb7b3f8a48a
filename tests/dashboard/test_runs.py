"""The pages about workflows and their runs, and what can be done there."""

import re
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import Claim, Gpu, NodeSpec
from tests.dashboard.conftest import Pages

HOSTILE = "<script>alert(1)</script>"
STEPS: list[dict[str, Any]] = [
    {"name": "fetch", "task": "fetch"},
    {"name": "train", "task": "train", "after": ["fetch"]},
    {"name": "tell", "task": "tell", "after": [{"step": "train", "on": "failed"}]},
    {"name": "publish", "task": "publish", "after": ["train"]},
]


class Running:
    """A run on a node of its own, driven step by step."""

    def __init__(self, sql: Client, graph: list[dict[str, Any]], **options: Any) -> None:
        self.sql = sql
        sql.create_queue("flow", policy={"max_attempts": 1})
        self.node = uuid4()
        self.epoch = sql.register_node(self.node, NodeSpec(name="n-1", instance_id="1"))
        sql.define_workflow({"name": "training", "queue": "flow", "steps": graph})
        self.run: UUID = sql.submit_workflow("training", {"size": 7}, **options).run_id

    @property
    def page(self) -> str:
        return f"/runs/{self.run}"

    def claim(self) -> dict[str, Claim]:
        """What the node is granted, by the names of the steps."""
        claims = self.sql.claim_task(["flow"], self.node, self.epoch, qty=100)
        return {str((claim.headers or {})["step"]): claim for claim in claims}

    def complete(self, step: str) -> None:
        claim = self.claim()[step]
        self.sql.complete_lease(claim.lease_id, claim.claim_token)

    def fail(self, step: str, message: str = "no memory") -> None:
        """Claim a step and let it fail for good."""
        claim = self.claim()[step]
        error = {"message": message}
        self.sql.fail_lease(claim.lease_id, claim.claim_token, error=error, retry=False)

    def states(self) -> dict[str, str]:
        return {row.step: row.state for row in self.sql.list_workflow_steps(self.run)}


@pytest.fixture
def running(sql: Client) -> Running:
    """A run of which nothing has been claimed."""
    return Running(sql, STEPS, labels={"team": "vision"}, affinity_tags=None, idempotency_key="november")


def boxes(text: str) -> dict[str, str]:
    """The states that the graph shows, by the names of the steps."""
    found = re.findall(r'class="box [^"]* is-([a-z]+)"[^>]*data-step="([^"]+)"', text)
    return {step: state for state, step in found}


async def test_the_list_filters_and_pages(pages: Pages, sql: Client, running: Running) -> None:
    other = [
        sql.submit_spec({"name": "other", "queue": "flow", "steps": [STEPS[0]]}).run_id for _ in range(51)
    ]
    sql.cancel_workflow_run(other[0])
    text = await pages.page("/runs")
    assert text.count('<tr id="run-') == 50
    assert f"before={other[1]}" in text
    text = await pages.page(f"/runs?before={other[1]}")
    listed = [f'id="run-{run}"' in text for run in (running.run, other[0], other[1])]
    assert listed == [True, True, False]
    text = await pages.page("/runs?workflow=training")
    assert text.count('<tr id="run-') == 1
    assert 'aria-label="1 pending, 3 waiting"' not in text  # a list does not read the leases
    assert 'aria-label="1 running, 3 waiting"' in text
    assert "0 of 4 completed" in text
    assert str(running.run) in await pages.page("/runs?label=team%3Dvision")
    assert "No run fits this filter" in await pages.page("/runs?label=team%3Daudio")
    assert (await pages.page("/runs?state=cancelled")).count('<tr id="run-') == 1
    assert "is not key=value" in await pages.page("/runs?label=team", 400)


async def test_the_graph_follows_the_run(pages: Pages, running: Running) -> None:
    text = await pages.page(running.page)
    waiting = {"train": "waiting", "tell": "waiting", "publish": "waiting"}
    assert boxes(text) == {"fetch": "pending"} | waiting
    assert 'data-from="train" data-to="tell"' in text
    assert (await pages.get(f"/jump?q={running.run}")).headers["location"] == running.page
    assert "if it fails" in text
    assert "<dt>Key</dt><dd><bdi>november</bdi></dd>" in text
    claim = running.claim()["fetch"]
    text = await pages.page(running.page)
    assert boxes(text) == {"fetch": "running"} | waiting
    assert "Runs fetch on n-1." in text
    running.sql.complete_lease(claim.lease_id, claim.claim_token)
    running.fail("train", HOSTILE)
    running.complete("tell")
    text = await pages.page(running.page)
    assert boxes(text) == {
        "fetch": "completed", "train": "failed", "tell": "completed", "publish": "skipped",
    }  # fmt: skip
    assert "at step" in text
    assert "&lt;script&gt;alert(1)" in text
    assert HOSTILE not in text
    assert f"/leases/{claim.lease_id}" in text
    assert f"/runs/{running.run}#step-of-fetch" in await pages.page(f"/leases/{claim.lease_id}")


async def test_what_a_run_waits_for_has_the_words_of_its_lease(pages: Pages, sql: Client) -> None:
    wants = {"placement": {"require": [{"tags": {"gpu": True}}], "resources": {"gpu": 4}}}
    running = Running(sql, [STEPS[0] | wants])
    gpus = [Gpu(resource_id=uuid4()) for _ in range(2)]
    spec = NodeSpec(name="small", instance_id="1", labels={"gpu": True}, gpus=gpus)
    sql.register_node(uuid4(), spec)
    [row] = sql.list_workflow_steps(running.run)
    assert row.lease_id
    why = sql.explain_lease(row.lease_id)
    text = await pages.page(f"{running.page}/why")
    assert "Waits for step" in text
    assert why.headline in text
    assert why.code in text
    text = await pages.page(f"{running.page}/steps")
    assert re.search(r'data-l="nodes match"><a [^>]*title="of 2 nodes">0</a>', text)


async def test_pause_resume_cancel(pages: Pages, sql: Client, running: Running) -> None:
    run = str(running.run)
    assert "1 step that is released goes" in await pages.page(f"/do/pause-run?run={run}")
    done = await pages.do("pause-run", run)
    assert done.headers["location"] == f"/runs/{run}?done=pause-run"
    running.complete("fetch")
    text = await pages.page(running.page)
    assert "1 step that is due is held" in text
    assert "held: the run is paused" in text
    assert "workflow_run_paused" in text
    assert "1 step that is held is" in await pages.page(f"/do/resume-run?run={run}")
    await pages.do("resume-run", run)
    assert running.states()["train"] == "running"
    asked = await pages.page(f"/do/cancel-run?run={run}")
    assert "2 steps will never be released" in asked
    await pages.do("cancel-run", run, reason="a mistake")
    found = sql.get_workflow_run(running.run)
    assert found.state == "cancelled"
    text = await pages.page(running.page)
    assert "a mistake, by anonymous" in text
    assert (await pages.do("cancel-run", run)).status_code == 303  # it is cancelled already
    assert (await pages.do("pause-run", run)).status_code == 409


async def test_a_retry_says_which_steps_run_again(pages: Pages, sql: Client, running: Running) -> None:
    run = str(running.run)
    assert "QHF04" in await pages.page(f"/do/retry-run?run={run}", 409)
    running.complete("fetch")
    running.fail("train")
    running.complete("tell")
    asked = await pages.page(f"/do/retry-run?run={run}")
    assert "3 steps run again" in asked
    assert "fetch" not in asked.partition('class="things"')[2]
    assert "4 steps run again" in await pages.page(f"/do/retry-all?run={run}")
    step = f"{run}:fetch"
    asked = await pages.page(f"/do/retry-step?step={step}")
    assert "Run again from step fetch?" in asked
    assert "4 steps run again" in asked
    done = await pages.do("retry-step", step)
    assert done.headers["location"] == f"/runs/{run}?done=retry-step"
    assert running.states()["fetch"] == "running"
    running.complete("fetch")
    running.fail("train")
    running.complete("tell")
    await pages.do("retry-run", run)
    assert running.states() == {
        "fetch": "completed", "train": "running", "tell": "waiting", "publish": "waiting",
    }  # fmt: skip
    sql.cancel_workflow_run(running.run)
    await pages.do("retry-all", run)
    assert running.states()["fetch"] == "running"


async def test_skip_a_step(pages: Pages, sql: Client, running: Running) -> None:
    step = f"{running.run}:fetch"
    assert "It is pending." in await pages.page(f"/do/skip-step?step={step}")
    assert (await pages.do("skip-step", step, result="{")).status_code == 400
    assert running.states()["fetch"] == "running"
    await pages.do("skip-step", step, result='{"uri": "s3://old"}', reason="there already")
    assert running.states()["fetch"] == "completed"
    [row] = [row for row in sql.list_workflow_steps(running.run) if row.step == "fetch"]
    assert row.result == {"uri": "s3://old"}
    assert "there already" in await pages.page(running.page)
    assert "QHF06" in (await pages.do("skip-step", f"{running.run}:nobody")).text


SIGNALS: list[dict[str, Any]] = [
    {"name": "approve", "kind": "wait", "signal": "approved"},
    {"name": "again", "kind": "wait", "signal": "approved", "after": ["approve", "fetch"]},
    {"name": "stop", "kind": "wait", "signal": "stopped", "timeout": "1 day"},
    STEPS[0],
]


async def test_send_a_signal(pages: Pages, sql: Client) -> None:
    running = Running(sql, SIGNALS)
    step = f"{running.run}:approve"
    asked = await pages.page(f"/do/send-signal?step={step}")
    assert "Step approve is open: it takes the oldest signal approved at once" in asked
    assert "0 signals of that name are kept" in asked
    assert "noted as done by" not in asked  # a signal leaves no event
    assert "noted as done by" in await pages.page(f"/do/skip-step?step={step}")
    assert re.search(r"<select[^>]*>\s*<option>approved</option><option>stopped</option>", asked)
    assert (await pages.do("send-signal", step, signal="approved", payload="{")).status_code == 400
    assert "QHF06" in (await pages.do("send-signal", step, signal="nobody")).text
    assert sql.list_run_signals(running.run) == []
    payload = '{"by": "ann"}'
    done = await pages.do("send-signal", step, signal="approved", payload=payload, signal_key="k")
    assert done.headers["location"] == f"/runs/{running.run}?done=send-signal"
    [sent] = sql.list_run_signals(running.run)
    assert (sent.key, sent.taken_by) == ("k", "approve")
    assert running.states()["approve"] == "completed"
    [row] = [row for row in sql.list_workflow_steps(running.run) if row.step == "approve"]
    assert row.result == {"by": "ann"}
    await pages.do("send-signal", step, signal="approved", payload=payload, signal_key="k")
    assert len(sql.list_run_signals(running.run)) == 1  # that key had come
    await pages.do("send-signal", f"{running.run}:again", signal="approved")
    asked = await pages.page(f"/do/send-signal?step={running.run}:again")
    assert "Step again is not released yet" in asked
    assert "1 signal of that name is kept" in asked
    assert "Step approve is completed" in await pages.page(f"/do/send-signal?step={step}")
    assert "waits for no signal" in await pages.page(f"/do/send-signal?step={running.run}:fetch", 422)
    sql.cancel_workflow_run(running.run)
    assert (await pages.do("send-signal", step, signal="approved")).status_code == 409


async def test_more_steps_than_a_graph_has_are_a_table_by_layer(pages: Pages, sql: Client) -> None:
    wide = [{"name": f"a{number}", "task": "t", "after": ["first"]} for number in range(220)]
    running = Running(sql, [{"name": "first", "task": "t"}, *wide])
    text = await pages.page(running.page)
    assert '<svg id="graph"' not in text
    assert text.count('<tr id="layer-') == 2
    assert text.count('<tr id="step-') == 1  # of the first layer that has not ended
    text = await pages.page(f"{running.page}?layer=1")
    assert text.count('<tr id="step-') == 220
    assert (await pages.page(f"{running.page}?layer=9")).count('<tr id="step-') == 1
    assert '<tr id="layer-1"' in await pages.page("/workflows/training")


async def test_definitions_and_their_versions(pages: Pages, sql: Client, running: Running) -> None:
    sql.define_workflow({"name": "training", "queue": "flow", "steps": STEPS[:2]})
    sql.cancel_workflow_run(running.run)
    text = await pages.page("/workflows")
    assert "/runs?workflow=training&amp;state=cancelled" in text
    text = await pages.page("/workflows/training")
    assert "version 2, the newest" in text
    assert set(re.findall(r'data-step="([^"]+)"', text)) == {"fetch", "train"}
    text = await pages.page("/workflows/training?version=1")
    assert set(re.findall(r'data-step="([^"]+)"', text)) == {"fetch", "train", "tell", "publish"}
    assert "1 cancelled" in text
    assert "is no version" in await pages.page("/workflows/training?version=x", 422)
    await pages.page("/workflows/training?version=7", 404)


async def test_where_the_steps_of_a_definition_may_run(pages: Pages, sql: Client, running: Running) -> None:
    asks = {"affinity_tags": {"zone": HOSTILE}, "placement": {"resources": {"gpu": 2}}}
    spec = {"name": "training", "queue": "flow", "steps": [STEPS[0], STEPS[1] | asks]}
    sql.define_workflow(spec)
    assert 'hx-get="/workflows/training/where?version=2"' in await pages.page("/workflows/training")
    text = await pages.page("/workflows/training/where?version=2")
    fetch, train = (text.partition(f'<tr id="where-{no}"')[2].partition("</tr>")[0] for no in (1, 2))
    assert "1 node could take it now" in fetch
    assert "any node" in fetch
    assert ">1</td>" in fetch
    assert ">0</td>" in train
    assert "zone in &lt;script&gt;" in train
    assert '2 GPU</bdi> <span class="by">by step</span>' in train
    assert HOSTILE not in text
    text = await pages.page("/workflows/training/where?version=1")
    assert text.count('<tr id="where-') == 4
    await pages.page("/workflows/training/where?version=7", 404)
    assert "is no version" in await pages.page("/workflows/training/where?version=x", 422)


async def test_a_map_counts_its_items_and_nested_runs_link_both_ways(pages: Pages, sql: Client) -> None:
    sql.create_queue("flow")
    sql.define_workflow({"name": "inner", "queue": "flow", "steps": [STEPS[0]]})
    steps: list[dict[str, Any]] = [
        {"name": "load", "kind": "workflow", "workflow": "inner"},
        {"name": "each", "task": "each", "kind": "map", "over": {"$input": ["shards"]}},
        {"name": "late", "task": "late", "kind": "map", "over": [1], "after": ["load"]},
    ]
    run = sql.submit_spec({"name": "outer", "queue": "flow", "steps": steps}, {"shards": [1, 2, 3]}).run_id
    for _ in range(3):
        sql.advance_workflows()
    [nested] = {step.nested_run_id for step in sql.list_workflow_steps(run)} - {None}
    page = (await pages.get(f"/runs/{run}")).text
    assert "0/3 items" in page
    assert "items: 3 waiting" in page
    assert f'href="/runs/{nested}"' in page
    assert f'href="/runs/{run}"' in (await pages.get(f"/runs/{nested}")).text
    # of a step that is not released
    assert "No item yet" in await pages.page(f"/runs/{run}/steps/late")
    assert f'href="/runs/{run}/steps/late"' not in page


async def test_items_of_a_map_are_looked_at_one_by_one(pages: Pages, sql: Client) -> None:
    over = list(range(103))
    score = {"name": "score", "task": "score", "kind": "map", "over": over, "tolerate": 3}
    running = Running(sql, [score, {"name": "end", "task": "end", "after": ["score"]}])
    claims = sorted(
        sql.claim_task(["flow"], running.node, running.epoch, qty=3),
        key=lambda claim: claim.headers["item"] if claim.headers else 0,
    )
    done, broken, _ = claims
    sql.complete_lease(done.lease_id, done.claim_token, result={"a": HOSTILE, "long": "x" * 500})
    sql.fail_lease(broken.lease_id, broken.claim_token, error={"message": "no memory"}, retry=False)
    address = f"{running.page}/steps/score"
    linked = await pages.page(running.page)
    assert f'href="{address}"' in linked
    assert f'href="{address}?state=failed"' in linked
    text = await pages.page(address)
    assert text.count('<tr id="item-') == 100
    assert "2 of 103 items ended, 1 failed" in text
    rows = re.findall(r'<tr id="item-(\d+)">(.*?)</tr>', text, re.DOTALL)
    assert [int(number) for number, _ in rows] == list(range(100))
    first, second, third, fourth = (row for _, row in rows[:4])
    assert f"/leases/{done.lease_id}" in first
    assert "&lt;script&gt;" in first
    assert HOSTILE not in text
    assert "x" * 200 not in text
    for row, state in ((first, "completed"), (second, "failed"), (third, "running")):
        assert f"</svg>{state}</span>" in row
        assert 'href="/nodes/n-1"' in row
    assert "no memory" in second
    assert "so far" in third
    assert "</svg>pending</span>" in fourth
    assert "/nodes/" not in fourth
    assert "100 items of this page, on 1 node" in text
    assert f'href="{address}?after=99"' in text
    last = await pages.page(f"{address}?after=99")
    assert last.count('<tr id="item-') == 3
    assert ">First</a>" in last
    failed = await pages.page(f"{address}?state=failed")
    assert re.findall(r'<tr id="item-(\d+)"', failed) == ["1"]
    assert "No item is cancelled" in await pages.page(f"{address}?state=cancelled")
    assert (await pages.page(f"{running.page}/steps/end")).count('<tr id="item-') == 1
    assert "has no step" in await pages.page(f"{running.page}/steps/none", 422)
    assert "does not exist" in await pages.page(f"/runs/{uuid4()}/steps/score", 404)


async def test_a_gang_step_and_its_gang_link_both_ways(pages: Pages, sql: Client) -> None:
    train = {"name": "train", "task": "train", "kind": "gang", "size": 3, "together": "rack"}
    running = Running(sql, [train])
    [step] = sql.list_workflow_steps(running.run)
    page = await pages.page(running.page)
    assert "0/3 members" in page
    assert f'href="/gangs/{step.gang_id}"' in page
    assert f"waits for gang {step.gang_id} of 3" in page
    members = await pages.page(f"{running.page}/steps/train")
    assert "Members of <bdi>train</bdi>" in members
    assert members.count('<tr id="item-') == 3
    assert f'href="/gangs/{step.gang_id}"' in members
    gang = await pages.page(f"/gangs/{step.gang_id}")
    assert f'href="{running.page}"' in gang
