"""The HTTP API and the dashboard as one application, served in one process or several.

Needs `pip install 'hwqueue[serve]'`.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import sys
import tempfile
from typing import Any

from hwqueue import logs
from hwqueue.extras import needs

with needs("serve"):
    import uvicorn
    from fastapi import FastAPI
    from pydantic import TypeAdapter

    from hwqueue.dashboard import mount_dashboard
    from hwqueue.server import ServerSettings, create_api
    from hwqueue.server.protocol import StrictProtocol

# How the settings get to server processes, which import the application again.
SETTINGS = TypeAdapter(ServerSettings)
_VARIABLE = "HWQUEUE_SERVER_SETTINGS"
_HEALTHCHECK_SECONDS = 60
# How long a thread that reads a large request keeps the event loop from running; Python's own is 5 ms.
_SWITCH_SECONDS = 0.0005


def create_app(settings: ServerSettings) -> FastAPI:
    """The API, and the dashboard for every address that the API has no route for.

    It connects to the database when it starts (`lifespan`).
    """
    app = create_api(settings)
    mount_dashboard(app, settings)
    return app


def run(settings: ServerSettings) -> None:
    """Serve until SIGTERM or Ctrl-C; then let requests under way finish."""
    _set_up_logs(json_logs=settings.json_logs)
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        # h11; the other one, where it is installed, takes addresses and headers of any length
        "http": StrictProtocol,
        "limit_concurrency": settings.max_connections,
        "access_log": False,  # RequestLogMiddleware writes one
        "log_config": None,
        # Who calls is decided by `auth.ProxyHeaders` alone, on the address of the connection.
        "proxy_headers": False,
        "server_header": False,
        "date_header": True,
        "timeout_graceful_shutdown": max(1, round(settings.shutdown_timeout.total_seconds())),
    }
    if settings.workers == 1:
        uvicorn.run(_app_to_serve(settings), **options)
        return
    with tempfile.TemporaryDirectory(prefix="hwqueue-sessions-") as sessions:
        shared = dataclasses.replace(settings, session_dir=settings.session_dir or sessions)
        os.environ[_VARIABLE] = SETTINGS.dump_json(shared).decode()
        uvicorn.run(
            "hwqueue.serve:app_of_process",
            factory=True,
            workers=settings.workers,
            # one that takes longer is replaced: on a busy machine 5 s do not do to import all
            timeout_worker_healthcheck=_HEALTHCHECK_SECONDS,
            **options,
        )


def app_of_process() -> FastAPI:
    """The application of one of several server processes."""
    settings = SETTINGS.validate_json(os.environ[_VARIABLE])
    _set_up_logs(json_logs=settings.json_logs)
    return _app_to_serve(settings)


def _app_to_serve(settings: ServerSettings) -> FastAPI:
    """The application of a process that does nothing else.

    Collections of garbage leave out what was there before the first request: with it a full one
    takes some 50 ms, in which no request is answered.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    app = create_app(settings)
    gc.collect()
    gc.freeze()
    return app


def _set_up_logs(*, json_logs: bool) -> None:
    """Warnings of everybody, and what the server itself says, its access log included."""
    logs.set_up(logs.LogSettings("json" if json_logs else "text", "warning"))
    for name in ("uvicorn.error", "hwqueue.access", "hwqueue.server"):
        logging.getLogger(name).setLevel(logging.INFO)
