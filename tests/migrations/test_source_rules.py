"""Rules for the files themselves: what a revision may hold, and what a function file must."""

import ast as python
import re
from pathlib import Path

import pglast
import pytest
from pglast import ast
from pglast.enums import FunctionParameterMode

from hwqueue import testing
from hwqueue.schema.files import MIGRATIONS_DIR, SQL_DIR
from tests.migrations.places import statements, unlocked_places, updated_tables

pytestmark = pytest.mark.every_variant

REVISIONS = sorted((MIGRATIONS_DIR / "versions").glob("[0-9]*.py"))
REVISION_SCRIPTS = sorted((MIGRATIONS_DIR / "versions").glob("[0-9]*.sql"))
NOT_IN_THE_BUNDLE = {"roles.sql", "owner.sql", "revoke.sql", "grants.sql", "schema.snapshot.sql"}
FUNCTION_FILES = sorted(
    path
    for path in SQL_DIR.rglob("*.sql")
    if path.name not in NOT_IN_THE_BUNDLE and path.parent.name != "pinned"
)

# Bodies live in function files; the upgrade is one transaction, which rules out the rest.
FORBIDDEN = {
    ast.CreateFunctionStmt: "function bodies belong in sql/",
    ast.ViewStmt: "views belong in sql/",
    ast.CreateTrigStmt: "no triggers on queue state",
    ast.TransactionStmt: "the upgrade is one transaction",
    ast.DoStmt: "a revision holds plain statements",
}
MAX_LINES = 600  # of a module: a subject stands in one
MAX_FUNCTION_LINES = 120
MAX_WIDTH = 110
MAX_PARAMETERS = 8  # what belongs together is one composite type, or a JSON object of a caller's
MORE_PARAMETERS = {
    # called by name; a completion without a result costs less as an array element than in p_settle
    "settle_and_claim"
}


def script_errors(script: str) -> list[str]:
    """What a revision's SQL must not hold."""
    errors = []
    for raw in pglast.parse_sql(script):
        statement = raw.stmt
        errors += [why for kind, why in FORBIDDEN.items() if isinstance(statement, kind)]
        if isinstance(statement, ast.IndexStmt) and statement.concurrent:
            errors.append("an index cannot be built concurrently inside the upgrade's transaction")
    if re.search(r"\b(select|perform|call)\s+(\S+\s+from\s+)?hwqueue\.\w+\s*\(", script, re.I):
        errors.append("a revision must not call functions: it may run before they exist")
    errors += [
        f"line {number} is wider than {MAX_WIDTH} columns"
        for number, line in enumerate(script.split("\n"), 1)
        if len(line) > MAX_WIDTH
    ]
    return errors


@pytest.mark.parametrize("path", REVISION_SCRIPTS, ids=lambda path: path.name)
def test_revisions_hold_tables_only(path: Path) -> None:
    assert script_errors(path.read_text()) == []


@pytest.mark.parametrize("path", REVISIONS, ids=lambda path: path.name)
def test_revisions_say_why_and_how_long(path: Path) -> None:
    text = path.read_text()
    for word in ("Why:", "Locks:", "Expected duration:"):
        assert word in text, f"the docstring of {path.name} lacks '{word}'"
    locks = text.partition("Locks:")[2].partition("Expected duration:")[0]
    assert not re.search(r"\bwhile\b|for an? (moment|instant)", locks), "they last to the commit"
    assert not re.search(r"create\s+(or\s+replace\s+)?(function|view)", text, re.I)


@pytest.mark.parametrize(
    "script",
    [
        "create function hwqueue.f() returns int language sql as 'select 1'",
        "create view hwqueue.v as select 1",
        "create index concurrently i on hwqueue.queue (name)",
        "select hwqueue.create_queue('x')",
        "commit",
        "comment on table hwqueue.queue is '" + "x" * MAX_WIDTH + "'",
    ],
)
def test_the_rule_for_revisions_can_fail(script: str) -> None:
    assert script_errors(script)


@pytest.mark.parametrize("path", FUNCTION_FILES, ids=lambda path: path.relative_to(SQL_DIR).as_posix())
def test_function_files_keep_the_rules(path: Path) -> None:
    assert function_file_errors(path.read_text()) == []


def function_file_errors(text: str) -> list[str]:
    """What is wrong with the text of a function file."""
    lines = text.splitlines()
    errors = [f"more than {MAX_LINES} lines"] if len(lines) > MAX_LINES else []
    if not lines or not lines[0].startswith("-- "):
        errors.append("the first line must be a comment that says what this is for")
    errors += [
        f"line {n}: wider than {MAX_WIDTH}" for n, line in enumerate(lines, 1) if len(line) > MAX_WIDTH
    ]
    errors += [
        f"{name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        for name, length in function_lengths(text)
        if length > MAX_FUNCTION_LINES
    ]
    made = [n for n, line in enumerate(lines) if re.match(r"create\b.*\b(function|view)\b", line)]
    for number in made:
        if lines[number].startswith("create function"):
            errors.append(f"line {number + 1}: must be `create or replace`, it runs every time")
        if len(made) > 1 and not lines[number - 1].startswith("--"):
            errors.append(f"line {number + 1}: one of several, needs a comment right above")
    # a session may have standard_conforming_strings off: what runs for it is read by its setting
    for literal in literals(text):
        if "\\" in literal and not literal.startswith(("E", "e")):
            errors.append(f"a backslash in {literal}: write [.] or E'..'")
    for raised in re.findall(r"\braise\s+exception\b[^;]*;", text, re.I):
        if "errcode" not in raised or "hint" not in raised:
            errors.append(f"no errcode or no hint: {raised}")
    return errors


def test_the_test_kit_names_functions_by_their_schema() -> None:
    """It runs as a superuser, where others may have left functions that fit better."""
    for path in Path(testing.__file__).parent.rglob("*.py"):
        for each in python.walk(python.parse(path.read_text())):
            if isinstance(each, python.Constant) and str(each.value).startswith("select "):
                assert re.findall(r"(?<![\w.])\w+\(", str(each.value)) == []


@pytest.mark.parametrize("path", FUNCTION_FILES, ids=lambda path: path.relative_to(SQL_DIR).as_posix())
def test_functions_take_few_parameters(path: Path) -> None:
    many = {name for name, count in parameter_counts(path.read_text()) if count > MAX_PARAMETERS}
    assert many - MORE_PARAMETERS == set(), f"more than {MAX_PARAMETERS} parameters"


def test_each_exception_takes_more_parameters() -> None:
    counts = dict(pair for path in FUNCTION_FILES for pair in parameter_counts(path.read_text()))
    assert {name for name in MORE_PARAMETERS if counts[name] <= MAX_PARAMETERS} == set()


def test_only_what_a_caller_passes_is_counted() -> None:
    text = """
      create or replace function hwqueue.f(p_a int, p_b text default ',', inout c int, out d int)
        language sql as $$ select 1, 2 $$;
      create or replace function hwqueue.g() returns table (a int, b int)
        language sql as $$ select 1, 2 $$;
    """
    assert parameter_counts(text) == [("f", 3), ("g", 0)]


def parameter_counts(text: str) -> list[tuple[str, int]]:
    """Each function of a module with how many values its callers pass."""
    results = {FunctionParameterMode.FUNC_PARAM_OUT, FunctionParameterMode.FUNC_PARAM_TABLE}
    made = [raw.stmt for raw in pglast.parse_sql(text)]
    return [
        ((stmt.funcname or ())[-1].sval, sum(p.mode not in results for p in stmt.parameters or ()))
        for stmt in made
        if isinstance(stmt, ast.CreateFunctionStmt)
    ]


def function_lengths(text: str) -> list[tuple[str, int]]:
    """Each function of a module with its lines, from `create` to the end of its body."""
    made = r"^create or replace function hwqueue\.(\w+)\(.*?\$\$;"
    return [(m[1], m[0].count("\n") + 1) for m in re.finditer(made, text, re.M | re.S)]


def literals(text: str) -> list[str]:
    """The string literals of a text of SQL, with the letter before the quote if it has one."""
    pattern = r"--[^\n]*|\"(?:[^\"]|\"\")*\"|[Ee]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'"
    return [found for found in re.findall(pattern, text, re.S) if found[0] in "Ee'"]


@pytest.mark.parametrize(
    "text",
    [
        "create or replace function hwqueue.f() returns int language sql as 'select 1';",
        "-- Purpose.\ncreate function hwqueue.f() returns int language sql as 'select 1';",
        "-- Purpose.\ncreate view hwqueue.v as select 1;\n\ncreate view hwqueue.w as select 1;",
        "-- Purpose.\n" * (MAX_LINES + 1),
        "-- Purpose." + "." * MAX_WIDTH,
        "-- Purpose.\ncreate or replace function hwqueue.f() returns void as $$"
        + "\n" * MAX_FUNCTION_LINES
        + "$$;",
        "-- Purpose.\nbegin raise exception 'no' using errcode = 'QHA01'; end",
        "-- It's here.\nselect a ~ 'it''s \\.'",
        "",
    ],
)
def test_the_rules_for_function_files_can_fail(text: str) -> None:
    assert function_file_errors(text)


@pytest.fixture(scope="module")
def updated() -> set[str]:
    """The tables whose rows are ever updated."""
    return updated_tables(path.read_text() for path in FUNCTION_FILES)


@pytest.mark.parametrize("path", FUNCTION_FILES, ids=lambda path: path.relative_to(SQL_DIR).as_posix())
def test_no_row_is_written_by_a_place_that_was_read_without_a_lock(path: Path, updated: set[str]) -> None:
    assert unlocked_places(path.read_text(), updated) == []


def test_every_write_by_a_place_is_looked_at() -> None:
    """The rule reads the files as they are written: it finds the writes that are known."""
    found = {name for path in FUNCTION_FILES for name, _ in statements(path.read_text())}
    assert {"add_counts", "claim_at_head", "require_check", "prune_terms", "assign_target_class"} <= found


_LATERAL = """
  delete from hwqueue.claim c using unnest(p_leases) i(lease_id)
  cross join lateral (select x.ctid as place from hwqueue.claim x where x.lease_id = i.lease_id{}) p
  where c.ctid = p.place;
"""
_NAMED = """
  with held as (select x.ctid as place from hwqueue.lease x where x.lease_id = p_lease{})
  update hwqueue.lease l set state = 'x' from held h where l.ctid = h.place;
"""
_IN_LIST = """
  if true then
    delete from hwqueue.claim c where c.ctid = any (array(
      select x.ctid from hwqueue.claim x where x.lease_id = any (p_leases){}));
  end if;
"""
_RETURNING = """
  for v_row in
    delete from hwqueue.claim where ctid = (select x.ctid from hwqueue.claim x limit 1{})
    returning lease_id
  loop perform 1; end loop;
"""
_BODY = """
-- Purpose.
create or replace function hwqueue.f() returns void language plpgsql as $$ begin {} end $$;
"""


@pytest.mark.parametrize("statement", [_LATERAL, _NAMED, _IN_LIST, _RETURNING])
def test_the_rule_for_places_can_fail(statement: str, updated: set[str]) -> None:
    [error] = unlocked_places(_BODY.format(statement.format("")), updated)
    assert error.startswith("f: writes ")
    locked = statement.format(" for update skip locked")
    assert unlocked_places(_BODY.format(locked), updated) == []
