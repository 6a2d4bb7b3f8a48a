"""Global options anywhere on the line, rows as text or JSON, errors as exit codes."""

import errno
import json
import re
from collections.abc import Callable
from functools import partial

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from hwqueue import errors
from hwqueue.cli import output
from hwqueue.cli.main import app as root
from hwqueue.cli.options import Options, in_front
from hwqueue.cli.output import ExitCode, report_error, show_one, show_rows
from hwqueue.schema import Drift


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("db status --json", "--json db status"),
        ("db status --dsn x -v", "--dsn x -v db status"),
        ("db status --dsn=x", "--dsn=x db status"),
        ("--json db status", "--json db status"),
        ("db status --dsn", "--dsn db status"),
        ("lease spawn -- --json", "lease spawn -- --json"),
        ("run python -v --dsn x --json", "run python -v --dsn x --json"),
        ("--dsn x run python -v", "--dsn x run python -v"),
        ("run --json -- python -v", "--json run -- python -v"),
        ("worker run --json", "--json worker run"),
    ],
)
def test_global_options_may_stand_anywhere(line: str, expected: str) -> None:
    assert in_front(line.split()) == expected.split()


def rows_printed(rows: list[dict[str, object]], options: Options) -> str:
    app = typer.Typer()

    @app.command()
    def show(ctx: typer.Context) -> None:
        ctx.obj = options
        show_rows(ctx, rows)

    return CliRunner().invoke(app, []).stdout


HOSTILE = "[/bold] [red]x \x1b[2J\x9b0m :smile: [not closed"
READABLE = "[/bold] [red]x \\x1b[2J\\x9b0m :smile: [not closed"


def test_what_users_wrote_begins_no_line_in_a_pipe() -> None:
    reason = "done\nFAKE LINE\x1b]0;pwned\x07\tand \u202ereversed\u061c\u200e\u200f"
    escaped = r"done\nFAKE LINE\x1b]0;pwned\x07\tand \u202ereversed\u061c\u200e\u200f"
    rows: list[dict[str, object]] = [{"reason": reason, "state": "cancelled"}]
    heading, row = rows_printed(rows, Options()).splitlines()
    assert heading.split() == ["reason", "state"]
    assert row == f"{escaped}  cancelled"
    assert json.loads(rows_printed(rows, Options(json=True)))[0]["reason"] == reason
    assert str(output.cell(reason)) == escaped


def test_an_error_of_several_lines_has_one_at_the_margin(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(errors.BadArgument("no\nerror: FAKE\x1b[2J", hint="a\nb"), Options())
    assert capsys.readouterr().err == "error: no\n  error: FAKE\\x1b[2J\nhint: a\n  b\n"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, command: Callable[..., None]) -> str:
    """What a command prints on a wide terminal without colours."""
    monkeypatch.setattr(output, "Console", partial(Console, force_terminal=True, width=200, no_color=True))
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0, result.exception
    return re.sub(r"\x1b\[[01]m", "", result.stdout)  # bold, and its end


def test_what_users_wrote_is_no_markup_and_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(ctx: typer.Context) -> None:
        show_rows(ctx, [{"task": HOSTILE}])

    def one(ctx: typer.Context) -> None:
        show_one(ctx, {"task": HOSTILE, "[b]name": "plain"})

    assert READABLE in on_a_terminal(monkeypatch, rows)
    printed = on_a_terminal(monkeypatch, one)
    assert READABLE in printed
    assert "[b]name" in printed
    assert "\x1b" not in printed


def test_errors_of_the_system_are_told_but_for_a_reader_that_went_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(error: OSError, *more: str) -> str:
        def fail(_ctx: object) -> None:
            raise error

        monkeypatch.setattr("hwqueue.cli.db.named_database", fail)
        result = CliRunner().invoke(root, ["db", "status", *more])
        assert result.exit_code == 1
        return result.stderr

    denied = json.loads(told(PermissionError(13, "Permission denied", "/some/file"), "--json"))
    assert "/some/file" in denied["error"]
    assert "--verbose" in denied["hint"]
    assert told(BrokenPipeError(errno.EPIPE, "Broken pipe")) == ""


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.LeaseNotFound, ExitCode.NOT_FOUND),
        (errors.QueueUnknown, ExitCode.NOT_FOUND),
        (errors.NodeUnknown, ExitCode.NOT_FOUND),
        (errors.RunNotFound, ExitCode.NOT_FOUND),
        (errors.WorkflowInvalid, ExitCode.USAGE),
        (errors.PlacementInvalid, ExitCode.USAGE),
        (errors.BadArgument, ExitCode.USAGE),
        (errors.ConfigError, ExitCode.USAGE),
        (errors.SchemaTooOld, ExitCode.SCHEMA),
        (errors.SchemaTooNew, ExitCode.SCHEMA),
        (errors.LeaseLost, ExitCode.FAILED),
        (errors.EmbeddedError, ExitCode.FAILED),
    ],
)
def test_errors_become_exit_codes(
    kind: type[errors.HwqueueError], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(kind("no such thing", hint="look again"), Options()) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "error: no such thing\nhint: look again\n")


def test_verbose_shows_where_an_error_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise errors.ConfigError("wrong")
    except errors.ConfigError as error:
        report_error(error, Options(verbose=True))
    assert "test_output.py" in capsys.readouterr().err


def test_a_drift_reads_as_a_sentence() -> None:
    drift = Drift("function", "clock()", "differs", {"volatility": ("v", "s")})
    assert str(drift) == "function clock(): differs; volatility is 's', not 'v'"
