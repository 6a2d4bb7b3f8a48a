"""Pages of lists: cutting them, and the Link header to the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response

T = TypeVar("T")


class Page:
    """A page of a list that is asked for, and the answer to it."""

    def __init__(self, request: Request, response: Response) -> None:
        self._request = request
        self._response = response

    def of(
        self, rows: list[T], limit: int, cursor_of: Callable[[T], object], *, name: str = "before"
    ) -> dict[str, Any]:
        """Of `limit` + 1 rows that were asked for the first `limit`, and the cursor of the page after.

        A Link header has the address of that page: as asked, from the cursor on.

        Args:
            cursor_of: What the page after a row begins with.
            name: Of the query parameter that takes it.
        """
        items, cursor = rows[:limit], None
        if len(rows) > limit:
            cursor = str(cursor_of(items[-1]))
            target = self._request.url.include_query_params(**{name: cursor})
            self._response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'
        return {"items": items, "next": cursor}


Paged = Annotated[Page, Depends()]
