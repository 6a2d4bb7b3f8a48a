"""The pytest plugin in a project of its own, and docs/use/testing.md, whose files make one."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from tests.e2e.worker_support import wait_until
from tests.shell_lines import tokens

pytest_plugins = ["pytester"]

# Each test notes its database.
NOTING = """
    import os
    import pathlib
    import time
    import pytest
    from psycopg.conninfo import conninfo_to_dict

    def note(dsn):
        name = conninfo_to_dict(dsn)["dbname"]
        with open(pathlib.Path(__file__).parent / "noted", "a") as file:
            file.write(name + "\\n")
        return name
"""


def noted(folder: Path) -> list[str]:
    """The databases that tests have noted, those of `hwqueue_prepare` first."""
    file = folder / "noted"
    return file.read_text().split() if file.exists() else []


def run_id(folder: Path) -> str:
    """That of the run, which is in the name of each database."""
    (one,) = {name.split("_")[2] for name in noted(folder)}
    return one


def left_behind(server_dsn: str, folder: Path) -> list[str]:
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "select datname from pg_database where datname like %s", [f"%{run_id(folder)}%"]
        )
        left = [name for (name,) in rows.fetchall()]
    return left + [str(path) for path in Path(tempfile.gettempdir()).glob(f"*{run_id(folder)}*")]


@pytest.fixture
def project(pytester: pytest.Pytester, server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project on the server under test, without plugins that other projects may not have."""
    monkeypatch.setenv("HWQUEUE_TEST_DSN", server_dsn)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis -p no:hypothesispytest")
    pytester.makeini("[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function")
    return pytester.path


@pytest.mark.parametrize("processes", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_every_test_has_a_copy_of_one_template(
    pytester: pytest.Pytester, project: Path, server_dsn: str, processes: int
) -> None:
    pytester.makeconftest(
        NOTING
        + """
    @pytest.fixture(scope="session")
    def hwqueue_prepare():
        def prepare(dsn):
            note(dsn)
            from hwqueue import Client
            with Client(dsn) as client:
                client.create_queue("work")
        return prepare
"""
    )
    pytester.makepyfile(
        NOTING
        + """
    @pytest.mark.parametrize("n", range(4))
    def test_each(hwqueue_client, hwqueue_dsn, n):
        note(hwqueue_dsn)
        assert hwqueue_client.list_leases() == []
        hwqueue_client.spawn_lease("work", "t")

    def test_shared(hwqueue_session_dsn):
        note(hwqueue_session_dsn)
"""
    )
    pytester.runpytest_subprocess(f"-n{processes}").assert_outcomes(passed=5)
    names = noted(project)
    assert names[0].endswith("_template")
    assert len(set(names)) == len(names) == 6
    assert left_behind(server_dsn, project) == []


@pytest.mark.parametrize("processes", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_nothing_is_left_after_ctrl_c(
    pytester: pytest.Pytester, project: Path, server_dsn: str, processes: int
) -> None:
    pytester.makepyfile(
        NOTING
        + """
    def test_stuck(hwqueue_dsn, hwqueue_client):
        note(hwqueue_dsn)
        time.sleep(600)
"""
    )
    command = [sys.executable, "-m", "pytest", f"-n{processes}"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL) as run:
        try:
            wait_until(lambda: bool(noted(project)))
            assert left_behind(server_dsn, project) != []
            run.send_signal(signal.SIGINT)
            assert run.wait(180) == pytest.ExitCode.INTERRUPTED
        finally:
            run.kill()
    assert left_behind(server_dsn, project) == []


def test_who_uses_no_fixture_pays_nothing(pytester: pytest.Pytester, project: Path) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.hasplugin("hwqueue")
            assert "pytest_hwqueue" in sys.modules
            assert not {"hwqueue", "psycopg", "alembic"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_server_comes_along(
    pytester: pytest.Pytester, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HWQUEUE_TEST_DSN")
    pytester.makepyfile(
        NOTING
        + """
    def test_one(hwqueue_client, hwqueue_dsn):
        note(hwqueue_dsn)
        (pathlib.Path(__file__).parent / "dsn").write_text(hwqueue_dsn)
        assert hwqueue_client.list_queues() == []
"""
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect((project / "dsn").read_text())
    assert not list(Path(tempfile.gettempdir()).glob(f"*{run_id(project)}*"))


def test_an_option_names_the_server(
    pytester: pytest.Pytester, project: Path, server_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWQUEUE_TEST_DSN", "postgresql://nowhere.invalid/x")
    pytester.makepyfile("def test_one(hwqueue_client): hwqueue_client.list_queues()")
    pytester.runpytest_subprocess("--hwqueue-dsn", server_dsn).assert_outcomes(passed=1)


def test_the_clock_and_the_fleet(pytester: pytest.Pytester, project: Path) -> None:
    pytester.makepyfile(
        """
        from datetime import timedelta
        from hwqueue.testing import claim_one

        def test_clock(hwqueue_client, hwqueue_clock):
            hwqueue_client.create_queue("work")
            hwqueue_client.spawn_lease("work", "t", delay=timedelta(days=1))
            before = hwqueue_clock.now()
            hwqueue_clock.advance(timedelta(days=1))
            assert hwqueue_clock.now() - before >= timedelta(days=1)
            assert claim_one(hwqueue_client, "work").task_name == "t"

        def test_fleet(hwqueue_client, hwqueue_fleet):
            hwqueue_fleet.add("gpu-1", gpus=1)
            hwqueue_fleet.add("cpu-1")
            assert hwqueue_fleet.matching({"resources": {"gpu": 1}}) == {"gpu-1"}
            assert hwqueue_fleet.matching(None) == {"gpu-1", "cpu-1"}
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_the_async_client_fits_every_event_loop(pytester: pytest.Pytester, project: Path) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        import pytest_asyncio
        from hwqueue.testing import assert_spawned

        async def use(client):
            await client.create_queue("work")
            await asyncio.gather(*(client.spawn_lease("work", "t") for _ in range(3)))
            await assert_spawned(client, "t", count=3)
            await client.acting_as("ann").spawn_lease("work", "t")

        def test_plain(hwqueue_async_client):
            asyncio.run(use(hwqueue_async_client))

        @pytest.mark.asyncio
        async def test_pytest_asyncio(hwqueue_async_client):
            await use(hwqueue_async_client)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_anyio(hwqueue_async_client):
            await use(hwqueue_async_client)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=3)


PAGE = Path(__file__).parents[2] / "docs" / "use" / "testing.md"
MESSAGE = """
import pytest
from hwqueue.testing import assert_spawned, create_queues
from tasks import app, confirm

def test_message(hwqueue_client):
    create_queues(hwqueue_client, app)
    confirm.spawn(hwqueue_client, to="ann", lang="de")
    with pytest.raises(AssertionError) as told:
        assert_spawned(hwqueue_client, confirm, params={{"to": "bob"}})
    assert str(told.value) == {said!r}
"""


def test_the_examples(pytester: pytest.Pytester, project: Path) -> None:
    files = {}
    for token in tokens(PAGE):
        if token.type == "fence" and token.info == "python":
            files[token.content.partition("\n")[0].removeprefix("# ")] = token.content
        elif token.type == "fence" and token.info == "text":
            files["test_message.py"] = MESSAGE.format(said=token.content.rstrip("\n"))
    for name, content in files.items():
        (project / name).write_text(content, encoding="utf-8")
    tests = sum(content.count("\ndef test_") for content in files.values())
    assert tests >= 12
    # one of them is run twice, with the same order: the first is rolled back
    pytester.runpytest_subprocess("-n0").assert_outcomes(passed=tests + 1)
