"""Waiting for a lease at a terminal: a bar that shows how far its handler says it has come."""

import time
from datetime import timedelta
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hwqueue.cli.output import plain_text
from hwqueue.client import Client
from hwqueue.client._ends import ENDED, timed_out
from hwqueue.types import Lease

_LOOK_EVERY_SECONDS = 1.0


def wait_with_bar(client: Client, lease_id: UUID, timeout: timedelta | None, console: Console) -> Lease:
    """Wait until the lease has ended, with a bar on the console.

    Raises: WaitTimeout, LeaseNotFound.
    """
    until = None if timeout is None else time.monotonic() + timeout.total_seconds()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("", total=None, said="")
        while (lease := client.get_lease(lease_id)).state not in ENDED:
            fraction = lease.progress.fraction if lease.progress else None
            bar.update(
                shown,
                description=lease.state.value,
                completed=fraction or 0,
                total=None if fraction is None else 1,
                said=plain_text(lease.progress.words) if lease.progress else "",
                refresh=True,
            )
            left = _LOOK_EVERY_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                raise timed_out([lease_id], timeout)
            time.sleep(min(left, _LOOK_EVERY_SECONDS))
    return lease
