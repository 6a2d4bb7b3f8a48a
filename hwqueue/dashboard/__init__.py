"""The operators' dashboard: pages made on the server, served beside the HTTP API."""

from hwqueue.dashboard.app import Dashboard, serve_beside

__all__ = ["Dashboard", "serve_beside"]
