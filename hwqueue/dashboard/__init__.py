"""The operators' dashboard: pages made on the server, served beside the HTTP API."""

from hwqueue.dashboard.app import Dashboard, mount_dashboard

__all__ = ["Dashboard", "mount_dashboard"]
