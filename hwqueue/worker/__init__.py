"""The worker runtime: claims leases for one node and runs their handlers."""

from hwqueue.extras import needs
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.worker.settings import WorkerSettings

with needs("worker"):
    from hwqueue.worker.runtime import Worker, run, spare_collector

__all__ = ["AsyncLeaseContext", "LeaseContext", "Worker", "WorkerSettings", "run", "spare_collector"]
