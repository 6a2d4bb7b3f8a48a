"""Everything that can keep the embedded server from running, each really brought about."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from filelock import FileLock

from hwqueue.embedded import EmbeddedServer, binaries
from hwqueue.embedded import server as server_module
from hwqueue.embedded.errors import (
    BinariesUnusable,
    DiskFull,
    FolderNotOurs,
    NoPermission,
    PortTaken,
    ServerFailed,
    WrongMajor,
)
from hwqueue.errors import EmbeddedError
from tests.embedded.conftest import MakeServer, as_root, effective_user
from tests.fix_db import strict_skip

NOBODY = 65534


def test_port_taken(server: EmbeddedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} on 127.0.0.1 is taken") as caught:
            server.start(port)
        assert "--port" in (caught.value.hint or "")
    assert server.start(port).port == port
    with pytest.raises(PortTaken, match=f"already runs on port {port}"):
        server.start(port + 1)


def test_folder_with_something_else_in_it(open_folder: Path, server_in: MakeServer) -> None:
    (open_folder / "thesis.txt").write_text("the only copy")
    with pytest.raises(FolderNotOurs, match="not empty and was not made by hwqueue"):
        server_in(open_folder).start()
    assert [path.name for path in open_folder.iterdir()] == ["thesis.txt"]


@as_root
def test_folder_of_another_user(server_in: MakeServer, server: EmbeddedServer) -> None:
    server.start()
    with effective_user(NOBODY), pytest.raises(FolderNotOurs, match="belongs to user id 0"):
        server_in(server.data_dir).ensure_running()


def test_folder_of_another_major_version(server_in: MakeServer, server: EmbeddedServer) -> None:
    server.start()
    server.stop()
    (server.data_dir / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(WrongMajor, match="was made by Postgres 17, this package runs 18"):
        server_in(server.data_dir).start()


@as_root
def test_no_permission_for_the_server_user(open_folder: Path, server_in: MakeServer) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(NoPermission, match="ermission denied") as caught:
        server_in(closed / "server").start()
    assert "HWQUEUE_DATA_DIR" in (caught.value.hint or "")


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of a size as tmpfs takes it."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(at)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        strict_skip("needs the right to mount a small disk")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


@as_root
def test_disk_full_at_start(open_folder: Path, server_in: MakeServer) -> None:
    with small_disk(open_folder / "disk", "200m") as disk:
        server = server_in(disk / "server")
        server.start()
        server.stop()
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        with pytest.raises(DiskFull):
            server.start()
        ballast.unlink()
        assert server.start().running
        server.stop()


def test_wheel_not_installed(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "PACKAGE", "embedded_postgres_of_another_name")
    with pytest.raises(BinariesUnusable, match="is not installed"):
        server.start()


@pytest.mark.parametrize(
    ("mode", "content"),
    [(0o644, b"#!/bin/sh\nexit 0\n"), (0o755, b"\x7fELF of another machine"), (0o755, b"#!/bin/false\n")],
    ids=["not executable", "another machine", "fails"],
)
def test_binaries_that_cannot_run(
    open_folder: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, mode: int, content: bytes
) -> None:
    program = open_folder / "package" / "pginstall" / "bin" / "postgres"
    program.parent.mkdir(parents=True)
    program.write_bytes(content)
    program.chmod(mode)
    monkeypatch.setattr(binaries, "package_folder", lambda: open_folder / "package")
    with pytest.raises(BinariesUnusable, match="does not run here"):
        server.start()


def test_other_failures_show_the_log(open_folder: Path) -> None:
    server = EmbeddedServer(open_folder / "server", settings={"fsync": "off", "no_such_thing": "1"})
    with pytest.raises(ServerFailed, match="no_such_thing") as caught:
        server.start()
    assert "server.log" in (caught.value.hint or "")


def test_somebody_else_keeps_the_lock(
    open_folder: Path,
    server_in: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = open_folder / "server"
    folder.mkdir()
    monkeypatch.setattr(server_module, "_LOCK_NOTE_S", 0.01)
    monkeypatch.setattr(server_module, "_LOCK_S", 0.01)
    with FileLock(folder / "lock"), pytest.raises(EmbeddedError, match="another process has held"):
        server_in(folder).ensure_running()
    assert "waiting for another process" in caplog.text
