"""The server in a thread of the tests, on a port of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from hwqueue.serve import create_app
from hwqueue.server import ServerSettings


@contextmanager
def serving(dsn: str, **settings: Any) -> Iterator[str]:
    """Serve a database; the address to ask."""
    app = create_app(ServerSettings(dsn=dsn, rate_limit=None, **settings))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # from now on callers wait instead of being refused
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
