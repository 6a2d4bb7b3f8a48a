"""hwqueue limit: made, looked at, closed, dropped."""

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown


def test_from_created_to_dropped(cli: Cli, shown: Shown, dsn: str) -> None:
    with Client(dsn, pool_size=1) as client:
        client.create_queue("default")
    assert "hwqueue limit create" in cli("limit", "list").stderr
    cli("tenant", "set", "film", "--slots", "40")
    for said in ("is made", "is there already"):
        assert said in cli("limit", "create", "per_user", "--slots", "2", "--by", "key").stderr
    cli("limit", "create", "openai", "--rate", "600/1m", "--burst", "50")
    cli("limit", "create", "turns", "--fair", "--by", "tenant", "--weights", '{"acme": 4}')
    for wrong in (("--rate", "600"), ("--slots", "0"), ("--fair",)):
        cli("limit", "create", "bad", *wrong, code=2)
    cli("lease", "spawn", "default", "call", "--limit", "per_user=u42", "--limit", "openai")
    assert shown("limit", "set", "per_user", '{"slots": 3}')["spec"]["slots"] == 3
    listed = cli("limit", "list").output
    assert "as many at once as each tenant has slots" in listed
    for words in ("3 at once, each key", "600 in 60 s, 50 at once", "in turn, each tenant"):
        assert words in listed
    assert "is closed until" in cli("limit", "throttle", "per_user", "--key", "u42", "--for", "30s").stderr
    [lane] = shown("limit", "show", "per_user", "--order", "wait")
    assert (lane["key"], lane["parked"]) == ("u42", 1)
    assert lane["closed_until"]
    assert "is open" in cli("limit", "throttle", "per_user", "--key", "u42", "--open").stderr
    assert "--for or --until" in cli("limit", "throttle", "openai", code=2).stderr
    cli("limit", "drop", "turns")
    cli("limit", "drop", "turns", code=3)
    cli("limit", "show", "turns", code=3)
