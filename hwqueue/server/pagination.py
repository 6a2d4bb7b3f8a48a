"""Pages of lists: cutting them, and the Link header to the next one."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request, Response

T = TypeVar("T")


def split_page(rows: list[T], limit: int) -> tuple[list[T], T | None]:
    """Of `limit` + 1 rows asked for: the page, and its last row if there are more."""
    return (rows[:limit], rows[limit - 1]) if len(rows) > limit else (rows, None)


def add_next_link(request: Request, response: Response, **cursor: Any) -> None:
    """Add a Link header with the address of the next page: as asked, from the cursor on."""
    target = request.url.include_query_params(**cursor)
    response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'
