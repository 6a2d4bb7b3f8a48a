"""The function files, in the order in which every upgrade applies them again."""

import hashlib
import tomllib
from dataclasses import dataclass

from hwqueue.schema.files import SHIPPED, Sources

# Created by grants.sql on the server (roles belong to no database).
ROLES = ("hwqueue_producer", "hwqueue_worker", "hwqueue_operator", "hwqueue_admin")


@dataclass(frozen=True)
class Bundle:
    """The text of every function file, by its path below `sql/`, and of `grants.sql`."""

    files: dict[str, str]
    grants: str

    @property
    def sha256(self) -> str:
        """Names, order and text of everything that is applied, as one hexadecimal hash."""
        digest = hashlib.sha256()
        for name, text in (*self.files.items(), ("grants.sql", self.grants)):
            digest.update(f"{name}\0{text}\0".encode())
        return digest.hexdigest()


def load_bundle(sources: Sources = SHIPPED) -> Bundle:
    """Read `bundle.toml` and the files that it lists."""
    listed = tomllib.loads((sources.sql / "bundle.toml").read_text(encoding="utf-8"))["files"]
    return Bundle(
        files={name: (sources.sql / name).read_text(encoding="utf-8") for name in listed},
        grants=(sources.sql / "grants.sql").read_text(encoding="utf-8"),
    )
