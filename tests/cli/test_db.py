"""hwqueue db, as a person or a script runs it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.embedded import EmbeddedServer
from hwqueue.schema.state import head_revision

pytestmark = pytest.mark.thorough

runner = CliRunner()
NAMING = ("HWQUEUE_DSN", "PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE", "PGDATABASE")


@pytest.fixture(autouse=True)
def no_database_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in NAMING:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, open_folder: Path) -> Iterator[EmbeddedServer]:
    """The embedded server in a folder of the test's own, not set up yet."""
    monkeypatch.setenv("HWQUEUE_DATA_DIR", str(open_folder / "server"))
    yield EmbeddedServer()
    EmbeddedServer().stop()


def facts(*line: str) -> dict[str, object]:
    """What a command prints with --json."""
    result = runner.invoke(app, [*line, "--json"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


def test_the_embedded_server_from_first_start_to_stop(embedded: EmbeddedServer) -> None:
    assert facts("db", "status")["running"] is False
    lines = runner.invoke(app, ["db", "status"]).stdout.splitlines()
    assert lines[:2] == ["server    embedded", "running   no"]
    assert not embedded.data_dir.exists()

    started = facts("db", "start")
    assert started["running"] is True
    assert facts("db", "status")["schema"] is None
    upgraded = facts("db", "upgrade")
    assert upgraded["changed"] is True
    assert upgraded["roles_installed"] is True
    assert facts("db", "upgrade")["changed"] is False
    assert runner.invoke(app, ["db", "check"]).exit_code == 0

    url = runner.invoke(app, ["db", "url"]).stdout.strip()
    assert facts("db", "url") == {"url": url}
    with psycopg.connect(url) as connection:
        assert connection.info.port == started["port"]
    status = facts("db", "status")
    assert status["revision"] == head_revision()
    assert status["server"] == "embedded"

    # as the embedded server of somebody who ran a demo before the first release
    with psycopg.connect(url) as connection:
        connection.execute("update hwqueue.schema_info set revision = '0018_remembered'")
    assert runner.invoke(app, ["demo"]).exit_code == 4
    facts("db", "drop", "--yes")
    assert facts("db", "upgrade")["changed"] is True
    assert runner.invoke(app, ["queue", "list"]).exit_code == 0

    assert "stopped" in runner.invoke(app, ["db", "stop"]).stderr
    assert "not running" in runner.invoke(app, ["db", "stop"]).stderr
    assert facts("db", "stop") == {"stopped": False}


def test_an_error_of_the_server_is_told_with_its_fix(embedded: EmbeddedServer) -> None:
    embedded.data_dir.mkdir()
    (embedded.data_dir / "thesis.txt").touch()
    result = runner.invoke(app, ["db", "start"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "was not made by hwqueue" in result.stderr
    assert "hint: choose an empty or new folder with HWQUEUE_DATA_DIR" in result.stderr


def test_the_flag_goes_before_the_environment(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("HWQUEUE_DSN", "postgresql://hwqueue.invalid/db")
    assert facts("db", "status", "--dsn", dsn)["server"] == "named by --dsn"
    monkeypatch.setenv("HWQUEUE_DSN", dsn)
    assert facts("db", "status")["server"] == "named by HWQUEUE_DSN"
    monkeypatch.delenv("HWQUEUE_DSN")
    refused = runner.invoke(app, ["db", "status"])
    assert refused.exit_code == 1
    assert "port 1 failed" in refused.stderr


def test_the_schema_is_dropped_by_who_names_the_database(empty_dsn: str) -> None:
    name = conninfo_to_dict(empty_dsn)["dbname"]
    line = ["--dsn", empty_dsn, "db", "drop"]
    nothing = runner.invoke(app, line, input=f"{name}\n")
    assert (nothing.exit_code, nothing.stderr.count(f"database {name} has no")) == (4, 1)
    facts("--dsn", empty_dsn, "db", "upgrade")
    for answer in ("", "postgres\n"):
        assert runner.invoke(app, line, input=answer).exit_code != 0
        assert facts("--dsn", empty_dsn, "db", "status")["schema"] is not None
    dropped = runner.invoke(app, line, input=f"{name}\n")
    assert dropped.exit_code == 0
    assert "drop role hwqueue_producer, hwqueue_worker," in dropped.stderr
    assert facts("--dsn", empty_dsn, "db", "status")["schema"] is None
    facts("--dsn", empty_dsn, "db", "upgrade")
    assert facts("--dsn", empty_dsn, "db", "drop", "--yes")["database"] == name
    with psycopg.connect(empty_dsn) as connection:
        schemas = "select nspname from pg_namespace where nspname like 'hwq%'"
        assert connection.execute(schemas).fetchall() == []


def test_drift_and_an_upgrade_that_is_due_are_told_and_exit_with_4(dsn: str) -> None:
    def checked() -> dict[str, Any]:
        result = runner.invoke(app, ["--dsn", dsn, "--json", "db", "check"])
        assert result.exit_code == 4
        return dict(json.loads(result.stdout))

    assert runner.invoke(app, ["--dsn", dsn, "db", "check"]).exit_code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        [own] = connection.execute("select bundle_sha256 from hwqueue.schema_info").fetchall()
        connection.execute("update hwqueue.schema_info set bundle_sha256 = 'of another release'")
        report = checked()
        assert (report["ok"], report["current"], report["drifts"]) == (False, False, [])
        assert report["installed"]["bundle_sha256"] == "of another release"
        connection.execute("update hwqueue.schema_info set bundle_sha256 = %s", own)
        connection.execute("drop index hwqueue.placement_class_anchors")
    report = checked()
    assert (report["ok"], report["current"]) == (False, True)
    assert [(row["kind"], row["name"], row["problem"]) for row in report["drifts"]] == [
        ("index", "placement_class_anchors", "missing")
    ]


def test_a_revision_from_before_the_first_release_is_told(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("update hwqueue.schema_info set revision = '0018_remembered'")
    for command in ("db check", "db upgrade", "queue list", "worker run --shell --queue q", "demo"):
        result = runner.invoke(app, ["--dsn", dsn, *command.split()])
        assert result.exit_code == 4
        *_, error, hint = result.stderr.splitlines()
        assert "revision 0018_remembered, from before the first release" in error
        assert error.endswith("nothing was changed")
        assert "to keep its leases" in hint
        assert "an upgrade is due" not in result.output
        assert result.stdout == ""


def test_what_is_not_done_to_a_server_of_ones_own(dsn: str) -> None:
    for line, told in (
        (["upgrade", "--no-roles"], "hint: leave out --no-roles"),
        (["start"], "does not manage"),
        (["stop"], "does not manage"),
    ):
        result = runner.invoke(app, ["--dsn", dsn, "db", *line])
        assert result.exit_code == 2
        assert told in result.stderr


def test_an_unreachable_server_is_told_in_a_line() -> None:
    dsn = "host=127.0.0.1 port=1"
    for command in ("upgrade", "check", "status"):
        result = runner.invoke(app, ["db", command, "--dsn", dsn, "--json"])
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert "port 1 failed" in json.loads(result.stderr)["error"]


def test_an_empty_name_is_no_name_for_the_embedded_server(
    embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, more in (("--dsn", ["--dsn", ""]), ("HWQUEUE_DSN", [])):
        for command in ("url", "status"):
            refused = runner.invoke(app, ["db", command, *more])
            assert refused.exit_code == 2
            assert f"{name} is empty" in refused.stderr
        monkeypatch.setenv("HWQUEUE_DSN", " ")
    assert not embedded.data_dir.exists()


def test_a_missing_schema_exits_with_4(empty_dsn: str) -> None:
    result = runner.invoke(app, ["db", "check", "--dsn", empty_dsn, "--json"])
    assert result.exit_code == 4
    error = json.loads(result.stderr)
    assert (error["sqlstate"], error["hint"]) == ("QHS01", "install it: hwqueue db upgrade")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["db", "check", "--dsn", "nonsense"], "--dsn is not a connection string"),
        (["queue", "list", "--dsn", "postgresql+psycopg://u:s3cret@h/x"], "--dsn is not a connection string"),
        (["serve", "--dsn", "postgresql://u:s3cret%zz@h/db"], "--dsn is not a connection string"),
        (["db", "start", "--port", "70000"], "65535"),
        (["db", "start", "--port", "x"], "--port"),
        (["db", "sideways"], "sideways"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_usage_errors_exit_with_2(line: list[str], complaint: str) -> None:
    result = runner.invoke(app, line)
    assert result.exit_code == 2
    assert complaint in result.stderr
    as_json = runner.invoke(app, [*line, "--json"])
    assert as_json.exit_code == 2
    assert complaint in json.loads(as_json.stderr)["error"]
    assert "s3cret" not in result.output + result.stderr + as_json.stderr


@pytest.mark.parametrize("line", [[], ["db"], ["--nonsense"], ["lease", "show"]])
def test_a_line_that_is_no_command_is_told_in_json(line: list[str]) -> None:
    result = runner.invoke(app, ["--json", *line])
    assert result.exit_code == 2
    error = json.loads(result.stderr)
    assert error["error"]
    assert "--help" in error["hint"]


def test_sql_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQUEUE_DSN", "postgresql://nowhere.invalid/db")
    script = runner.invoke(app, ["db", "sql"]).stdout
    assert "create table hwqueue.lease " in script
    assert "to hwqueue_producer" in script
    assert "hwqueue_producer" not in runner.invoke(app, ["db", "sql", "--no-roles"]).stdout
