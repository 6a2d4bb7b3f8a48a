"""Pages of lists: a link to the next one."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request, Response

T = TypeVar("T")


def cut(rows: list[T], limit: int) -> tuple[list[T], T | None]:
    """Of `limit` + 1 rows asked for: the page, and its last row if there are more."""
    return (rows[:limit], rows[limit - 1]) if len(rows) > limit else (rows, None)


def link_next(request: Request, response: Response, **cursor: Any) -> None:
    """Tell in a Link header where the next page is: as asked, from the cursor on."""
    target = request.url.include_query_params(**cursor)
    response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'
