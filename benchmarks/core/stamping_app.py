"""The app of workers whose handlers only say when they started."""

import time

from benchmarks.core.fill import TASK
from hwqueue import App

app = App()


@app.task(TASK)
def stamp() -> float:
    """The system's monotonic clock, which all its processes read alike."""
    return time.monotonic()
