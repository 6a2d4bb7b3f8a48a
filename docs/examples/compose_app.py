"""The tasks that the two example nodes of docker-compose.yml run."""

import socket
from typing import Any

import hwqueue

app = hwqueue.App()


@app.task("where", queue="examples")
def where(params: dict[str, Any]) -> dict[str, Any]:
    """Say which machine got the lease."""
    return {"ran_on": socket.gethostname(), "params": params}
