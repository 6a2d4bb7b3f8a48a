"""The HTTP API: `create_app`, and `run`, which serves it. Needs `pip install 'hwqueue[serve]'`."""

from hwqueue.extras import needs

with needs("serve"):
    from hwqueue.server.app import create_app
    from hwqueue.server.serve import run
    from hwqueue.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "run"]
