"""Cookies of the dashboard: for our pages alone, and over https alone where browsers come so."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from hwqueue.server.settings import ServerSettings

SESSION_COOKIE = "hwqueue-session"  # the id of a session
CSRF_COOKIE = "hwqueue-form"  # a random number of the browser's, which CSRF tokens are bound to
_HOST = "__Host-"  # browsers keep such cookies of this very host over https alone


class Cookies:
    """The cookies of a request, and the headers that set those of its answer."""

    def __init__(self, scope: Scope, settings: ServerSettings) -> None:
        self._cookies = HTTPConnection(scope).cookies
        self.is_secure = _is_secure(scope, settings)
        # `__Host-` is for the whole host, wherever the dashboard is mounted
        self._path = "/" if self.is_secure else scope.get("root_path", "") or "/"

    def get(self, name: str) -> str | None:
        """The value of a cookie of ours; one that a plain page could have set counts for nothing
        where browsers come over https."""
        return self._cookies.get(self._full_name(name))

    def set_header(self, name: str, value: str) -> str:
        """The header that sets a cookie for our pages alone, until the browser is closed."""
        parts = [f"{self._full_name(name)}={value}", f"Path={self._path}", "HttpOnly", "SameSite=Lax"]
        return "; ".join([*parts, "Secure"] if self.is_secure else parts)

    def delete_header(self, name: str) -> str:
        """The header that takes a cookie away."""
        return f"{self.set_header(name, '')}; Max-Age=0"

    def _full_name(self, name: str) -> str:
        return f"{_HOST}{name}" if self.is_secure else name


def cookies_of(request: Request) -> Cookies:
    """The cookies of a request."""
    cookies: Cookies = request.scope["dashboard"]["cookies"]
    return cookies


def _is_secure(scope: Scope, settings: ServerSettings) -> bool:
    """Whether browsers send our cookies over https alone.

    What the header of any proxy says is enough: a cookie that was made secure by mistake lets
    nobody in.
    """
    if scope["scheme"] == "https" or settings.has_secure_cookies:
        return True
    says = Headers(scope=scope).get("x-forwarded-proto", "")
    return settings.secure_cookies is None and says.strip().lower() == "https"
