"""Clients for the SQL functions: `AsyncClient`, and `Client` generated from it."""

from hwqueue.client._async.client import AsyncClient
from hwqueue.client._sync.client import Client

__all__ = ["AsyncClient", "Client"]
