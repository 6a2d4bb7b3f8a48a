"""Which user root runs the server as."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from hwqueue.embedded.account import Account, server_account
from hwqueue.embedded.errors import NoPermission
from tests.embedded.conftest import as_root

NOWHERE = Path("/nonexistent/data")
SHARED = 65501
OTHER = 65502


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The users of a made-up system, by name; the test runs as its root."""
    made: dict[str, int] = {}

    def by_name(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", made[name], made[name], "", "/", "/bin/false"))

    def by_uid(uid: int) -> pwd.struct_passwd:
        return by_name({number: name for name, number in made.items()}[uid])

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(pwd, "getpwuid", by_uid)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


@pytest.mark.parametrize("name", ["postgres", "hwqueue"])
def test_a_user_of_its_own_comes_first(
    users: dict[str, int], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    users |= {"nobody": SHARED, "daemon": OTHER, name: 101}
    assert server_account(NOWHERE) == Account(name, 101, 101)
    assert caplog.text == ""


def test_a_shared_user_comes_with_a_warning(users: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    users |= {"nobody": SHARED, "daemon": OTHER}
    assert server_account(NOWHERE) == Account("nobody", SHARED, SHARED)
    assert "useradd --system" in caplog.text


@as_root
def test_a_shared_user_that_others_run_as_is_passed_over(users: dict[str, int]) -> None:
    users |= {"nobody": SHARED, "daemon": OTHER}
    as_nobody, as_daemon = ["sleep", "600"], ["sleep", "600"]
    with subprocess.Popen(as_nobody, user=SHARED) as first:
        assert server_account(NOWHERE) == Account("daemon", OTHER, OTHER)
        with subprocess.Popen(as_daemon, user=OTHER) as second:
            with pytest.raises(NoPermission, match="no postgres or hwqueue") as caught:
                server_account(NOWHERE)
            second.kill()
        first.kill()
    assert "useradd --system" in (caught.value.hint or "")


def test_who_is_not_root_stays_who_he_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert server_account(NOWHERE) is None


@as_root
def test_the_owner_of_the_data_goes_before_all(users: dict[str, int], tmp_path: Path) -> None:
    users |= {"postgres": 101, "somebody": OTHER}
    os.chown(tmp_path, OTHER, OTHER)
    assert server_account(tmp_path) == Account("somebody", OTHER, OTHER)
