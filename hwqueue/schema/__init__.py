"""Install, upgrade and check the `hwqueue` schema of a database."""

from typing import TYPE_CHECKING

from hwqueue.extras import loader
from hwqueue.schema.drift import CheckReport, Drift, check
from hwqueue.schema.state import Installed, read_version, require_compatible
from hwqueue.types import SchemaVersion

if TYPE_CHECKING:
    from hwqueue.schema.install import UpgradeResult, install_script, upgrade

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

_OF_UPGRADES = ("UpgradeResult", "install_script", "upgrade")
__getattr__ = loader(__name__, "schema", "hwqueue.schema.install", _OF_UPGRADES)
