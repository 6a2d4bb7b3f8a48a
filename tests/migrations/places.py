"""Finds statements that write rows by a ctid that they have read themselves without a lock.

Such a row may have moved between the statement's snapshot and the write, when the statement waited
in between: it is then passed over, and nothing says so. Safe are places that the statement locks
when it reads them, places that an earlier statement brought, and places of rows that nobody
updates: those never move.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pglast
from pglast import ast
from pglast.visitors import Visitor

_PLACE = "ctid"


_COMMENT = re.compile(r"--[^\n]*")
_INTO = re.compile(r"(?<!insert )\binto\s+[\w.\"]+(\s*,\s*[\w.\"]+)*", re.I)
_BEGINS = re.compile(r"\b(with|delete\s+from|update|insert\s+into|select|perform)\b", re.I)
_ENDS = re.compile(r"\bloop\b", re.I)
_TOLD = re.compile(r"\bctid\b|\b(delete\s+from|update)\s+hwqueue", re.I)


def statements(text: str) -> Iterator[tuple[str, Any]]:
    """The statements in a file of functions and views, each with its function's name.

    Of PL/pgSQL bodies only those that write, or read a place; the rest is passed over.
    """
    for raw in pglast.parse_sql(text):
        if not isinstance(raw.stmt, ast.CreateFunctionStmt):
            yield "", raw.stmt
            continue
        made = cast(Any, raw.stmt)
        name = str(made.funcname[-1].sval)
        options: dict[str, Any] = {option.defname: option.arg for option in made.options or ()}
        body = str(options["as"][0].sval)
        if options["language"].sval == "sql":
            yield from ((name, inner.stmt) for inner in pglast.parse_sql(body))
        else:
            pieces = _COMMENT.sub("", body).split(";")
            yield from ((name, _statement(piece)) for piece in pieces if _TOLD.search(piece))


def _statement(piece: str) -> Any:
    """The SQL in a piece of PL/pgSQL, whatever is around it."""
    without_targets = _INTO.sub("", piece)
    for begin in _BEGINS.finditer(without_targets):
        rest = without_targets[begin.start() :]
        for candidate in (rest, _ENDS.split(rest)[0], f"select array({rest}"):
            try:
                [raw] = pglast.parse_sql(re.sub(r"^perform\b", "select", candidate, flags=re.I))
            except (pglast.parser.ParseError, ValueError):
                continue
            return raw.stmt
    raise AssertionError(f"not understood: {piece}")


class _Collector(Visitor):
    """All nodes of one kind, nested ones included."""

    def __init__(self, *kinds: type[ast.Node]) -> None:
        self._kinds = kinds
        self.found: list[Any] = []

    def visit(self, _ancestors: Any, node: Any) -> None:
        if isinstance(node, self._kinds):
            self.found.append(node)


def _all(tree: Any, *kinds: type[ast.Node]) -> list[Any]:
    collector = _Collector(*kinds)
    for part in tree if isinstance(tree, (list, tuple)) else [tree]:
        if part is not None:
            collector(part)
    return collector.found


def updated_tables(texts: Iterable[str]) -> set[str]:
    """The tables whose rows are ever updated, and so may move."""
    return {
        statement.relation.relname
        for text in texts
        for _, tree in statements(text)
        for statement in _all(tree, ast.UpdateStmt, ast.InsertStmt)
        if isinstance(statement, ast.UpdateStmt)
        or (statement.onConflictClause and statement.onConflictClause.targetList)
    }


def unlocked_places(text: str, updated: set[str]) -> list[str]:
    """The writes in a file that go by places which they read themselves and do not lock."""
    errors = []
    for name, tree in statements(text):
        for write in _all(tree, ast.DeleteStmt, ast.UpdateStmt):
            table = write.relation.relname
            if table in updated and _goes_by_place(write) and _reads_unlocked(tree, table):
                errors.append(f"{name}: writes {table} by a ctid that it has read without a lock")
    return errors


def _goes_by_place(write: Any) -> bool:
    """Whether rows to be written are chosen by their own ctid."""
    target = write.relation.alias.aliasname if write.relation.alias else write.relation.relname
    inner = {
        id(column)
        for query in _all(write.whereClause, ast.SelectStmt)
        for column in _all(query, ast.ColumnRef)
    }
    return any(
        _words(column) in ([target, _PLACE], [_PLACE])
        for column in _all(write.whereClause, ast.ColumnRef)
        if id(column) not in inner
    )


def _reads_unlocked(tree: Any, table: str) -> bool:
    """Whether a query in the statement returns places of the table and locks nothing."""
    return any(
        any(_words(column)[-1:] == [_PLACE] for column in _all(query.targetList, ast.ColumnRef))
        and not query.lockingClause
        and (_ranges(query) & {table} or not _ranges(query))
        for query in _all(tree, ast.SelectStmt)
        if query.targetList
    )


def _ranges(query: Any) -> set[str]:
    return {source.relname for source in _all(query.fromClause, ast.RangeVar)}


def _words(column: Any) -> list[str]:
    return [str(field.sval) for field in column.fields if isinstance(field, ast.String)]
