"""The command line against a real database: what each noun does, prints and exits with."""

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.testing import claim_one
from tests.e2e.conftest import Cli, Shown

GPU_NODE = ("--tags", '{"gpu_model": "T4"}', "--capacity", '{"cpu_milli": 8000}', "--gpu", "T4")


def test_the_queues_that_the_tasks_of_an_app_name(
    cli: Cli, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_queues.py").write_text(
        "import hwqueue\n\napp = hwqueue.App()\n"
        "@app.task('draw', queue='renders')\ndef draw(): ...\n"
        "@app.task('mail')\ndef mail(): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    cli("queue", "create", "renders", "--policy", '{"max_attempts": 7}')
    for _ in range(2):
        made = shown("queue", "create", "--app", "two_queues:app")
        assert [queue["queue"] for queue in made] == ["default", "renders"]
    assert shown("queue", "show", "renders")["policy"]["max_attempts"] == 7
    assert "and not both" in cli("queue", "create", code=2).stderr
    cli("queue", "create", "renders", "--app", "two_queues:app", code=2)
    assert "renderz" in cli("lease", "spawn", "renderz", "draw", code=3).stderr


def test_lists_have_pages_and_one_that_cannot_be_cancelled_holds_back_no_other(
    cli: Cli, shown: Shown, dsn: str
) -> None:
    cli("queue", "create", "renders")
    ids = [shown("lease", "spawn", "renders", "draw")["lease_id"] for _ in range(4)]
    first = shown("lease", "list", "--limit", "3")
    rest = shown("lease", "list", "--limit", "3", "--before", first[-1]["lease_id"])
    assert [row["lease_id"] for row in first + rest] == ids[::-1]
    assert shown("lease", "spawn", "renders", "draw", "--delay", "10m")["state"] == "scheduled"
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    result = cli("lease", "cancel", ids[0], unknown, ids[1], "--json", code=1)
    rows = json.loads(result.stdout)
    assert [row["state"] for row in rows] == ["cancelled", None, "cancelled"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert [shown("lease", "show", lease_id)["state"] for lease_id in ids[:2]] == ["cancelled"] * 2
    # one that runs was asked to stop
    with Client(dsn) as client:
        for _ in range(2):
            claim_one(client, "renders")
    assert "asked to stop" in cli("lease", "cancel", ids[2]).stdout
    assert shown("lease", "cancel", ids[3])[0]["state"] == "claimed"


def test_taints_and_trust(cli: Cli, shown: Shown) -> None:
    cli("node", "register", "box-1")
    cli("node", "taint", "box-1", "dedicated=film:no_schedule")
    cli("node", "taint", "box-1", "ip:v4=6:no_execute")
    taints = shown("node", "show", "box-1")["taints"]
    assert [(t["key"], t["value"], t["effect"], t["by"]) for t in taints] == [
        ("dedicated", "film", "no_schedule", "operator"),
        ("ip:v4", "6", "no_execute", "operator"),
    ]
    assert '["dedicated=film:no_schedule", "ip:v4=6:no_execute"]' in cli("node", "list").stdout
    for bad in ("dedicated", ":no_schedule", "dedicated=film:never", "=film:no_schedule"):
        cli("node", "taint", "box-1", bad, code=2)
    cli("node", "attest", "box-1", "acme.prod", "--expires-at", "tomorrow", code=2)
    cli("node", "attest", "box-1", "acme.prod")
    assert "hwqueue node confirm" in cli("node", "hand-over", "box-1", "hwqueue_worker").stderr
    cli("node", "confirm", "box-1", "--instance", "another", code=1)
    confirmed = cli("node", "confirm", "box-1", "--instance", shown("node", "show", "box-1")["instance_id"])
    assert "confirmed 1 attestation of box-1" in confirmed.stderr
    cli("node", "hand-over", "box-1", "no such role", code=2)
    assert "no longer" in cli("node", "revoke", "box-1", "acme.prod").stderr
    assert "is not" in cli("node", "revoke", "box-1", "acme.prod").stderr


def test_explain_says_why_a_lease_waits(cli: Cli, shown: Shown) -> None:
    cli("queue", "create", "renders")
    cli("node", "register", "gpu-box", *GPU_NODE, "--rack", "3")
    placement = '{"require": [{"tags": {"gpu_model": "A100"}}], "resources": {"gpu": 1}}'
    lease = shown("lease", "spawn", "renders", "draw", "--placement", placement)["lease_id"]
    found = shown("lease", "explain", lease)
    assert (found["code"], found["nodes_live"]) == ("label_mismatch", 1)
    assert found["sole_blockers"][0]["samples"] == ["gpu-box"]
    text = cli("lease", "explain", lease).stdout
    assert f"lease {lease} is pending in renders" in text
    assert "1 node would match but for gpu_model in A100" in text
    assert 'label_mismatch: wants gpu_model in A100, has "T4"' in text
    assert "gpu-box (live, rack 3)" in text
    assert "gpu-box (live" not in cli("lease", "explain", lease, "--nodes", "0").stdout
    cli("lease", "explain", str(uuid.uuid4()), code=3)
    cli("lease", "explain", "seven", code=2)


def test_errors_name_what_is_wrong(cli: Cli) -> None:
    lines: list[tuple[list[str], int, str | None, str]] = [
        (["queue", "show", "absent"], 3, "QHQ01", "absent"),
        (["lease", "spawn", "absent", "draw"], 3, "QHQ01", "absent"),
        (["lease", "show", str(uuid.UUID(int=7))], 3, "QHL04", "7"),
        (["lease", "show", "seven"], 2, None, "LEASE_ID"),
        (["lease", "requeue"], 2, None, "--queue and what else they have in common"),
        (["node", "show", "absent"], 3, "QHN01", "absent"),
        (["node", "cordon", "absent"], 3, "QHN01", "absent"),
        (["queue", "create", "x" * 300], 2, "QHA01", ""),
        (["queue", "create", "q", "--policy", '{"patience": -5}'], 2, "QHA01", "patience"),
        (["match", '{"require": [{"label": "a", "op": "near"}]}'], 2, "QHC03", "near"),
        (["match", '{"spread": [{"domain": "rack", "max_skew": 1}]}'], 2, "QHC03", "spread"),
        (["match", "{"], 2, None, "not JSON"),
        (["worker", "run"], 2, None, "--app is missing"),
        (["worker", "run", "--app", "nowhere:app"], 2, None, "no module"),
        (["node", "drain", "n", "--deadline", "soon"], 2, None, "--deadline"),
        (["events", "list", "--code", "lease_dead"], 2, None, "did you mean lease_updated"),
        (["events", "tail", "--follow", "--code", "x"], 2, None, "one of queue_created, "),
        (["token", "create", "ci", "--role", "root"], 2, "QHA01", 'error": "role must be'),
        (["queue", "pause", "absent"], 3, "QHQ01", "hwqueue queue create absent"),
    ]
    for args, code, sqlstate, words in lines:
        result = cli("--json", *args, code=code)
        error = json.loads(result.stderr)
        assert (args, error["sqlstate"]) == (args, sqlstate)
        assert words in json.dumps(error)
        assert result.stdout == ""
        plain = cli(*args, code=code)
        assert plain.stderr.startswith("error: "), args


def test_why_it_is_pending(cli: Cli, shown: Shown) -> None:
    cli("queue", "create", "renders")
    cli("node", "register", "small-1", "--tags", '{"gpu_model": "T4"}')
    lease_id = shown("lease", "spawn", "renders", "draw", "--tags", '{"gpu_model": "A100"}')["lease_id"]
    [row] = shown("pending", "--queue", "renders", "--kind", "no_match")
    assert (row["pending"], row["nodes_matching"], row["nodes_near"]) == (1, 0, 1)
    assert row["code"] == "label_mismatch"
    assert shown("pending", "--kind", "contended") == []
    table = cli("pending", "--order", "pending").stdout
    assert "label_mismatch" in table
    cli("node", "register", "big-1", "--tags", '{"gpu_model": "A100"}')
    [row] = shown("pending", "--class", str(row["class_id"]))
    assert (row["code"], row["nodes_free"]) == (None, 1)
    assert "nothing of this kind" in cli("pending", "--kind", "no_match").stderr
    [depth] = shown("queue", "depth", "renders")
    assert (depth["pending"], depth["running"]) == (1, 0)
    assert "renders" in cli("queue", "depth").stdout
    assert [step["event"] for step in shown("lease", "history", lease_id)] == ["spawned", "ready"]
    assert "spawned" in cli("lease", "history", lease_id).stdout
    [one] = shown("class", "list", "--queue", "renders")
    assert one["pending"] == 1
    assert "gpu_model" in cli("class", "list", "--limit", "1").stdout


def test_a_token_without_an_end_is_warned_of(cli: Cli) -> None:
    endless = cli("token", "create", "endless", "--role", "viewer", "--bare")
    assert endless.stdout.startswith("hwq_")
    assert len(endless.stdout.splitlines()) == 1
    assert "endless never ends" in endless.stderr
    assert "--expires" in endless.stderr
    limited = cli("token", "create", "limited", "--role", "viewer", "--expires", "90d")
    assert "never ends" not in limited.stderr


def test_who_lacks_a_right_is_told_what_to_grant(dsn: str, empty_dsn: str) -> None:
    login = f"hwqueue_test_nobody_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute(f"create role {login} login password 'x'")
        mine, empty = (
            psycopg.conninfo.make_conninfo(at, user=login, password="x") for at in (dsn, empty_dsn)
        )
        try:
            called = CliRunner().invoke(app, ["--dsn", mine, "queue", "list"])
            installed = CliRunner().invoke(app, ["--dsn", empty, "db", "upgrade"])
        finally:
            admin.execute(f"drop role {login}")
    assert called.exit_code == installed.exit_code == 1
    assert "permission denied" in called.stderr
    assert "hint: log in as one who has the role for it" in called.stderr
    assert "hwqueue_operator" in called.stderr
    assert "permission denied for database" in installed.stderr
    assert "grant create on database NAME to LOGIN" in installed.stderr


def test_log_lines_are_shown(cli: Cli, shown: Shown, dsn: str) -> None:
    cli("queue", "create", "renders")
    lease_id = shown("lease", "spawn", "renders", "draw")["lease_id"]
    assert cli("lease", "logs", lease_id).stderr == "no log lines\n"
    with Client(dsn) as client:
        claim = claim_one(client, "renders")
        at = datetime(2030, 1, 31, 12, tzinfo=UTC).isoformat()
        lines: list[dict[str, Any]] = [
            {"line": 7, "at": at, "message": "tile\x1b 3\nof 4", "fields": {"tile": 3}},
            {"line": 8, "at": at, "level": "warning"},
        ]
        its = {"lease_id": lease_id, "claim_token": claim.claim_token, "lines": lines}
        assert client.append_logs([its]) == 2
        client.complete_lease(claim.lease_id, claim.claim_token)
    for more in ((), ("--follow",), ("--attempt", "1")):
        told = cli("lease", "logs", lease_id, *more)
        assert told.stderr.splitlines() == ["attempt 1:", "... 6 lines not kept"]
        assert told.stdout.splitlines() == [
            "2030-01-31 12:00:00+00:00 info    tile\\x1b 3",
            '  of 4  {"tile": 3}',
            "2030-01-31 12:00:00+00:00 warning ",
        ]
    [last] = cli("--json", "lease", "logs", lease_id, "--tail", "1").stdout.splitlines()
    assert (json.loads(last)["line"], json.loads(last)["level"]) == (8, "warning")
    assert cli("lease", "logs", lease_id, "--attempt", "2").stdout == ""
    for command in ("show", "wait"):
        assert f"hwqueue lease logs {lease_id}" in cli("lease", command, lease_id).stderr


def test_waiting_tells_how_a_lease_ended(cli: Cli, shown: Shown, dsn: str) -> None:
    cli("queue", "create", "renders")
    ids = [shown("lease", "spawn", "renders", "draw", "--max-attempts", "1")["lease_id"] for _ in range(3)]
    with Client(dsn) as client:
        done, failed = claim_one(client, "renders"), claim_one(client, "renders")
        client.complete_lease(done.lease_id, done.claim_token, result={"drawn": 7})
        client.fail_lease(failed.lease_id, failed.claim_token, error={"message": "no paint"})
    assert shown("lease", "wait", str(done.lease_id))["result"] == {"drawn": 7}
    assert shown("lease", "wait", str(failed.lease_id), code=1)["error"] == {"message": "no paint"}
    late = cli("lease", "wait", ids[2], "--timeout", "0s", code=7)
    assert f"lease explain {ids[2]}" in late.stderr
    cli("lease", "cancel", ids[2])
    assert shown("lease", "wait", ids[2], code=6)["state"] == "cancelled"
    cli("lease", "wait", "01890a5d-ac96-774b-bcce-b302099a8057", code=3)
