"""Install, upgrade and check the `hwqueue` schema of a database."""

from hwqueue.schema.check import CheckReport, Drift, check
from hwqueue.schema.state import Installed, read_version, require_compatible
from hwqueue.schema.upgrade import UpgradeResult, install_script, upgrade
from hwqueue.types import SchemaVersion

__all__ = [
    "CheckReport",
    "Drift",
    "Installed",
    "SchemaVersion",
    "UpgradeResult",
    "check",
    "install_script",
    "read_version",
    "require_compatible",
    "upgrade",
]
