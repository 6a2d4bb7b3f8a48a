"""Clients for the SQL functions: `AsyncClient`, and `Client` generated from it."""

from hwqueue.client._async.client import AsyncClient
from hwqueue.client._async.waiting import AsyncSpawned, AsyncTaskSpawned
from hwqueue.client._sync.client import Client
from hwqueue.client._sync.waiting import Spawned, TaskSpawned

__all__ = ["AsyncClient", "AsyncSpawned", "AsyncTaskSpawned", "Client", "Spawned", "TaskSpawned"]
