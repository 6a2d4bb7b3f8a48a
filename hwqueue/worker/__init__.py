"""The worker runtime: claims leases for one node and runs their handlers."""

from hwqueue.worker.context import AsyncLeaseContext, LeaseContext
from hwqueue.worker.runtime import Worker, run
from hwqueue.worker.settings import WorkerSettings

__all__ = ["AsyncLeaseContext", "LeaseContext", "Worker", "WorkerSettings", "run"]
