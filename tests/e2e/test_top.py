"""`hwqueue top` on a real database: what it reads, prints, and does when nobody answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.cli.top import source as source_module
from hwqueue.cli.top.frame import frame
from hwqueue.cli.top.source import DatabaseSource
from hwqueue.client import AsyncClient
from hwqueue.types import Gpu, NodeSpec

H100 = {"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    """A queue with a lease that runs, one that waits and one that no node may run."""
    async with AsyncClient(dsn) as client:
        await client.create_queue("renders")
        node = uuid4()
        spec = NodeSpec(
            name="n1",
            instance_id="first",
            rack=7,
            labels={"gpu_model": "T4"},
            cpu_milli=4000,
            gpus=[Gpu(resource_id=uuid4())],
        )
        epoch = await client.register_node(node, spec)
        needs = {"resources": {"gpu": 1, "cpu_milli": 1500}}
        for placement in (needs, needs, H100):
            await client.spawn_lease("renders", "draw", placement=placement)
        assert len(await client.claim_task(["renders"], node, epoch, qty=9)) == 1
        await client.pause_queue("renders")
        await client.resume_queue("renders")
        yield client


@pytest.fixture
async def source(client: AsyncClient, dsn: str) -> AsyncIterator[DatabaseSource]:
    source = DatabaseSource(dsn)
    yield source
    await source.close()


async def test_everything_is_read(source: DatabaseSource) -> None:
    lines = frame(await source.read(), rows=5).splitlines()
    assert lines[1].startswith("leases  2 pending, 1 running, 0 scheduled, oldest ")
    assert lines[2] == "stuck   1 that no node may run, 1 whose nodes are busy"
    assert lines[3] == "nodes   1 (1 live), CPU 1.5/4 (38 %), GPU 1/1 (100 %)"
    text = "\n".join(lines)
    assert "gpu_model in H100" in text
    assert "1.5/4" in text
    assert "queue_resumed" in text


async def test_what_runs_is_read_with_its_progress(source: DatabaseSource, client: AsyncClient) -> None:
    [claim] = await client.node_claims((await client.list_nodes(name="n1"))[0].node_id)
    said = {"lease_id": str(claim.lease_id), "claim_token": claim.claim_token}
    await client.report_progress([said | {"done": 3, "total": 4, "message": "tile 3"}])
    text = frame(await source.read(), rows=5)
    assert f"{str(claim.lease_id)[-8:]}  draw  n1  " in text
    assert "███████░░░ 75 %, 3 of 4: tile 3" in text
    await client.complete_lease(claim.lease_id, claim.claim_token)
    assert (await source.read()).running == []


async def test_why_a_class_waits(source: DatabaseSource) -> None:
    reading = await source.read()
    [reason] = [row for row in reading.pending if row.nodes_matching == 0]
    text = "\n".join(await source.explain(reason))
    assert "What would help" in text
    assert "gpu_model" in text
    assert "n1 (live)" in text


async def test_reading_is_bounded(
    source: DatabaseSource, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await client.register_node(uuid4(), NodeSpec(name=name, instance_id="first"))
    await client.cordon_node((await client.list_nodes(name="n1"))[0].node_id)
    reading = await source.read()
    assert [node.node_name for node in reading.nodes] == ["n1", "a", "b"]
    for most in ("MOST_NODES", "MOST_CLASSES", "MOST_RUNNING"):
        monkeypatch.setattr(source_module, most, 1)
    reading = await source.read()
    assert (len(reading.nodes), len(reading.pending)) == (1, 1)
    assert reading.cut == {"nodes", "pending"}


async def test_what_takes_too_long_is_given_up(client: AsyncClient, dsn: str) -> None:
    source = DatabaseSource(dsn, patience=timedelta(milliseconds=100))
    with psycopg.connect(dsn) as other:
        other.execute("lock table hwqueue.queue")
        with pytest.raises(psycopg.errors.QueryCanceled):
            await source.read()
    await source.close()


async def test_a_lost_connection_is_made_anew(source: DatabaseSource, dsn: str) -> None:
    await source.read()
    end = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
    with psycopg.connect(dsn) as other:
        other.execute(end + " and datname = current_database()")
    with pytest.raises(psycopg.OperationalError):
        await source.read()
    assert (await source.read()).queues


def test_one_frame(client: AsyncClient, dsn: str) -> None:
    once = CliRunner().invoke(app, ["--dsn", dsn, "top", "--once", "--rows", "1"])
    assert once.exit_code == 0, once.output
    assert "Pending (the first 1)" in once.stdout
    assert "renders" in once.stdout
    given = CliRunner().invoke(app, ["--dsn", dsn, "top", "--once", "--json"])
    assert given.exit_code == 0, given.output
    content = json.loads(given.stdout)
    assert [queue["queue"] for queue in content["queues"]] == ["renders"]
    assert len(content["pending"]) == 2
    assert content["cut"] == []


def test_bad_options(dsn: str) -> None:
    for wrong in "--interval 100ms", "--interval soon", "--json", "--rows 0":
        assert CliRunner().invoke(app, ["--dsn", dsn, "top", *wrong.split()]).exit_code == 2, wrong
