"""The embedded server: set up once, kept, shared, and closed to others."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hwqueue.embedded import EmbeddedServer, binaries
from hwqueue.embedded import server as server_module
from hwqueue.embedded.account import server_account, switch_to
from hwqueue.embedded.errors import FolderNotOurs, ServerFailed
from hwqueue.embedded.postmaster import find_postmaster
from tests.embedded.conftest import MakeServer, answers, as_root


def test_data_and_address_are_kept_over_a_restart(server_in: MakeServer, server: EmbeddedServer) -> None:
    url = server.ensure_running()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 42 as answer")
    assert server.stop()
    assert not server.stop()

    assert server_in(server.data_dir).ensure_running() == url
    with psycopg.connect(url) as connection:
        assert connection.execute("select answer from kept").fetchone() == (42,)
        assert connection.info.server_version // 10000 == 18


def test_status_tells_and_makes_nothing(server: EmbeddedServer) -> None:
    assert not server.status().running
    assert not server.data_dir.exists()

    started = server.start()
    assert started.running
    assert started.pid is not None
    assert psutil.Process(started.pid).name() == "postgres"
    assert started == server.status() == server.start()

    server.stop()
    stopped = server.status()
    assert (stopped.running, stopped.pid, stopped.port) == (False, None, started.port)


def test_only_this_machine_and_only_with_the_password(server: EmbeddedServer) -> None:
    url = server.ensure_running()
    assert stat.S_IMODE((server.data_dir / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE((server.data_dir / "data").stat().st_mode) == 0o700
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(make_conninfo(url, password="guess"))
    status = server.status()
    listening = psutil.Process(status.pid).net_connections(kind="all")
    addresses = {c.laddr for c in listening if c.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)}
    assert addresses == {("127.0.0.1", status.port)}


def test_starts_at_once_agree(open_folder: Path, server_in: MakeServer) -> None:
    servers = [server_in(open_folder / "server") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        urls = set(pool.map(EmbeddedServer.ensure_running, servers))
    assert len(urls) == 1


def test_processes_starting_at_once_agree(server: EmbeddedServer) -> None:
    environment = os.environ | {"HWQUEUE_DATA_DIR": str(server.data_dir)}
    code = "from hwqueue.embedded import EmbeddedServer; print(EmbeddedServer().ensure_running())"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {process.communicate()[0].strip() for process in processes}
    assert answers == {server.url()}


def test_starts_again_after_a_crash(server: EmbeddedServer) -> None:
    pid = server.start().pid
    assert pid is not None
    postmaster = psutil.Process(pid)
    family = [postmaster, *postmaster.children()]
    for process in family:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(family)

    assert not server.status().running
    assert answers(server.ensure_running())


def test_an_interrupted_start_is_finished_by_the_next_one(server: EmbeddedServer) -> None:
    """The server goes on alone when the process that started it is ended."""
    url = server.ensure_running()
    (server.data_dir / "port").unlink()  # written last, so an interrupted start has none
    assert server.url() == url
    assert server.status().port == server.start().port == int(conninfo_to_dict(url)["port"] or 0)
    assert server.ensure_running() == url


def test_a_server_on_its_way_up_is_waited_for(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.ensure_running()
    ready = find_postmaster(server.data_dir / "data")
    assert ready is not None
    seen = [replace(ready, state="starting"), replace(ready, port=None, state=None)]
    monkeypatch.setattr(server_module, "find_postmaster", lambda _data: seen.pop() if seen else ready)
    assert server.ensure_running() == url
    assert not seen


def test_a_server_that_stays_on_its_way_is_named(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    pid_file = server.data_dir / "data" / "postmaster.pid"
    before = pid_file.read_text()
    monkeypatch.setattr(server_module, "_SETTLE_S", 0.01)
    for state in ("starting", "stopping"):
        pid_file.write_text(before.replace("ready", state))
        assert not server.status().running
        with pytest.raises(ServerFailed, match=f"has been {state} for"):
            server.ensure_running()
    pid_file.write_text(before)


def test_a_process_id_that_is_somebody_elses_by_now(server: EmbeddedServer) -> None:
    """As after a crash in a container, where the same few ids come again."""
    url = server.ensure_running()
    pid_file = server.data_dir / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()
    account = server_account(server.data_dir / "data")
    stranger = subprocess.Popen(["sleep", "600"], **switch_to(account))
    try:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        if account:
            os.chown(pid_file, account.uid, account.gid)
        assert not server.status().running
        assert server.status().pid is None
        assert not server.stop()
        assert server.ensure_running() == url
        assert answers(url)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_postgres_of_another_folder_is_a_stranger(
    open_folder: Path, server_in: MakeServer, server: EmbeddedServer
) -> None:
    other = server_in(open_folder / "other")
    running = other.start()
    server.start()
    server.stop()
    shutil.copy(other.data_dir / "data" / "postmaster.pid", server.data_dir / "data")
    assert not server.status().running
    assert not server.stop()
    assert other.status() == running


def test_an_interrupted_set_up_is_done_again(server: EmbeddedServer) -> None:
    half_made = server.data_dir / "data.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    (server.data_dir / "lock").touch()

    assert server.start().running
    assert not half_made.exists()


def test_settings_reach_the_server(open_folder: Path) -> None:
    server = EmbeddedServer(open_folder / "server", settings={"fsync": "off", "work_mem": "7MB"})
    try:
        with psycopg.connect(server.ensure_running()) as connection:
            assert connection.execute("show work_mem").fetchone() == ("7MB",)
    finally:
        server.stop()


def test_settings_for_other_servers_are_not_inherited(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    for variable in ("PGSSLMODE", "PGCHANNELBINDING", "PGGSSENCMODE"):
        monkeypatch.setenv(variable, "require")
    status = server.start()
    assert status.running
    assert status.port != 1
    assert answers(server.ensure_running())
    facts = conninfo_to_dict(server.url())
    assert facts["host"] == "127.0.0.1"
    assert {"user", "password", "port", "dbname"} <= facts.keys()


@as_root
def test_root_copies_programs_that_the_server_cannot_reach(
    open_folder: Path, server_in: MakeServer, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    package = binaries.package_folder()
    for path in (package, package.with_name(package.name + ".libs")):
        (closed / path.name).symlink_to(path)
    monkeypatch.setattr(binaries, "package_folder", lambda: closed / package.name)

    status = server.start()
    assert status.running
    copies = list(server.data_dir.glob("binaries-*"))
    assert len(copies) == 1
    assert Path(psutil.Process(status.pid).exe()).is_relative_to(copies[0])
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    before = copies[0].stat()
    assert server_in(open_folder / "server").status().running
    assert copies[0].stat() == before


# Steps down once everything is imported: the interpreter itself may be closed to others.
ORDINARY_USER = """
import os, sys
from pathlib import Path
import psycopg
from hwqueue.embedded import EmbeddedServer, binaries

open_folder = Path(sys.argv[1])
binaries.package_folder = lambda: open_folder / binaries.PACKAGE
os.setgroups([]), os.setgid(65534), os.setuid(65534)
server = EmbeddedServer(open_folder / "home" / "server")
with psycopg.connect(server.ensure_running()) as connection:
    print(connection.execute("select 6 * 7").fetchone()[0])
assert server.stop()
"""


@as_root
def test_runs_for_an_ordinary_user(open_folder: Path) -> None:
    """The other tests run as whoever runs them; where that is root, this one does not."""
    package = binaries.package_folder()
    for path in (package, package.with_name(package.name + ".libs")):
        if path.exists():
            shutil.copytree(path, open_folder / path.name)
    (open_folder / "home").mkdir()
    os.chown(open_folder / "home", 65534, 65534)
    run = subprocess.run(
        [sys.executable, "-c", ORDINARY_USER, str(open_folder)], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "42", run.stderr
    assert (open_folder / "home" / "server" / "data").stat().st_uid == 65534


def test_the_folder_and_its_lock_are_closed_to_others(server: EmbeddedServer) -> None:
    """Who can open a file can hold its lock, and let everybody wait."""
    with server._locked():
        folder, lock = server.data_dir.stat(), (server.data_dir / "lock").stat()
    assert stat.S_IMODE(folder.st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    assert stat.S_IMODE(lock.st_mode) == 0o600
    (server.data_dir / "lock").chmod(0o644)  # as it was made before
    with server._locked():
        assert stat.S_IMODE((server.data_dir / "lock").stat().st_mode) == 0o600


@as_root
@pytest.mark.parametrize("made_as", ["folder", "link"])
def test_root_uses_no_folder_of_somebody_else(open_folder: Path, server_in: MakeServer, made_as: str) -> None:
    theirs = open_folder / "theirs"
    if made_as == "folder":
        theirs.mkdir()
        (theirs / "lock").touch()
    else:
        (open_folder / "roots").mkdir()
        theirs.symlink_to(open_folder / "roots")
    os.chown(theirs, 65534, 65534, follow_symlinks=False)
    for use in (EmbeddedServer.ensure_running, EmbeddedServer.start):
        with pytest.raises(FolderNotOurs, match="belongs to user id 65534"):
            use(server_in(theirs))


@pytest.mark.parametrize("name", ["port", "password", "data/PG_VERSION", "data/server.log"])
def test_links_in_the_folder_are_not_followed(open_folder: Path, server: EmbeddedServer, name: str) -> None:
    secret = open_folder / "secret"
    secret.write_text("s3cret\n")
    (server.data_dir / name).parent.mkdir(parents=True)
    (server.data_dir / name).symlink_to(secret)
    with pytest.raises(FolderNotOurs, match="symbolic link") as caught:
        server._read(name)
    assert "s3cret" not in str(caught.value)


def test_a_link_in_the_place_of_the_port_is_not_written_through(
    open_folder: Path, server: EmbeddedServer
) -> None:
    server.start()
    assert server.stop()
    (server.data_dir / "port").unlink()
    (server.data_dir / "port").symlink_to(open_folder / "made")
    with pytest.raises(FolderNotOurs, match="symbolic link"):
        server.start()
    assert not (open_folder / "made").exists()


def test_calls_that_are_refused_leave_nothing_in_the_log(server: EmbeddedServer) -> None:
    url, log = server.ensure_running(), server.data_dir / "data" / "server.log"
    with psycopg.connect(url, autocommit=True) as connection:
        before = log.stat().st_size
        for _ in range(20):
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("select 1 from what_is_not_there")
        assert "what_is_not_there" not in log.read_text()[before:]


def test_a_folder_may_have_any_name(open_folder: Path, server_in: MakeServer) -> None:
    """`pg_ctl` hands paths to a shell."""
    server = server_in(open_folder / 'it\'s $HOME `pwd` \\ "here"')
    with psycopg.connect(server.ensure_running()) as connection:
        assert connection.execute("show data_directory").fetchone() == (str(server.data_dir / "data"),)
    assert server.stop()
