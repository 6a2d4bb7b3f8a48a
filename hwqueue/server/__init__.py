"""The HTTP API; `hwqueue.serve` serves it with the dashboard. Needs the extra `serve`."""

from hwqueue.extras import needs

with needs("serve"):
    from hwqueue.server.app import create_api
    from hwqueue.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_api"]
