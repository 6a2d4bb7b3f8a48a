"""Connection strings hold passwords: no error and no repr shows them."""

import traceback
from collections.abc import Callable

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.connections import check_conninfo, with_timeouts
from hwqueue.errors import ConfigError
from hwqueue.metrics import HwqueueCollector
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.worker.settings import WorkerSettings, worker_conninfo

WRONG = [
    "postgresql+psycopg://u:s3cret@localhost/x",
    "mysql://u:s3cret@localhost/x",
    "postgresql://u:SEK%zzs3cret@localhost/x",
    "host=localhost password='s3cret",
    "host=localhost pasword=s3cret",
    "s3cret",
]
READERS: list[Callable[[str], object]] = [
    lambda dsn: check_conninfo(dsn, "--dsn"),
    lambda dsn: with_timeouts(dsn, seconds=2),
    Client,
    AsyncClient,
    worker_conninfo,
    lambda dsn: create_app(ServerSettings(dsn=dsn)),
    lambda dsn: HwqueueCollector(dsn)._connect(),
]


@pytest.mark.parametrize("dsn", WRONG)
@pytest.mark.parametrize("read", READERS)
def test_what_is_wrong_is_not_repeated(read: Callable[[str], object], dsn: str) -> None:
    with pytest.raises(ConfigError, match="is not a connection string") as caught:
        read(dsn)
    error = caught.value
    told = "".join(traceback.format_exception_only(error)) + f"{error.hint} {error.detail}"
    chain = (error.__cause__, None if error.__suppress_context__ else error.__context__)
    assert chain == (None, None)
    assert "s3cret" not in told
    assert "SEK" not in told


@pytest.mark.parametrize("read", [Client, AsyncClient, worker_conninfo])
def test_empty_is_refused_as_on_the_command_line(
    read: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for empty in ("", " "):
        with pytest.raises(ConfigError, match="is empty"):
            read(empty)
    monkeypatch.setenv("HWQUEUE_DSN", "")
    with pytest.raises(ConfigError, match="HWQUEUE_DSN is empty"):
        read(None)


def test_none_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQUEUE_DSN", "dbname=named")
    assert "dbname=named" in worker_conninfo(None)
    monkeypatch.delenv("HWQUEUE_DSN")
    assert "dbname" not in worker_conninfo(None)


def test_what_to_write_is_told_and_no_connection_string_shown() -> None:
    for dsn, words in ((WRONG[0], "SQLAlchemy"), (WRONG[2], "%25"), (WRONG[1], "postgresql://")):
        with pytest.raises(ConfigError) as caught:
            check_conninfo(dsn, "--dsn")
        assert words in (caught.value.hint or "")
    dsn = "postgresql://u:s3cret@localhost/x"
    for settings in (WorkerSettings(dsn=dsn, listen=dsn), ServerSettings(dsn=dsn)):
        assert "s3cret" not in repr(settings)
        assert "dsn=" not in repr(settings)
