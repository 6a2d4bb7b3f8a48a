"""A real Postgres server that comes with the package, for when no other one is named."""

from hwqueue.extras import needs

with needs("embedded"):
    from hwqueue.embedded.server import EmbeddedServer, ServerStatus, default_data_dir

__all__ = ["EmbeddedServer", "ServerStatus", "default_data_dir"]
