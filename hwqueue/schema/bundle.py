"""The modules of functions and views that every upgrade applies again."""

import hashlib
from dataclasses import dataclass

from hwqueue.schema.files import SHIPPED, Sources

# Created by roles.sql on the server (roles belong to no database), and granted to logins.
ROLES = (
    *("hwqueue_producer", "hwqueue_worker", "hwqueue_planner", "hwqueue_operator", "hwqueue_admin"),
    "hwqueue_tenants",
)
# Created by owner.sql: everything in the schema belongs to it.
OWNER = "hwqueue_owner"


@dataclass(frozen=True)
class Bundle:
    """The text of every SQL module, by its path below `sql/`, and of what is around them."""

    roles: str
    owner: str
    files: dict[str, str]
    revoke: str
    grants: str

    @property
    def sha256(self) -> str:
        """Names, order and text of everything that is applied, as one hexadecimal hash."""
        digest = hashlib.sha256()
        before = (("roles.sql", self.roles), ("owner.sql", self.owner))
        after = (("revoke.sql", self.revoke), ("grants.sql", self.grants))
        for name, text in (*before, *self.files.items(), *after):
            digest.update(f"{name}\0{text}\0".encode())
        return digest.hexdigest()


# Not part of an installation: applied by what needs it.
_APART = {"testing", "pinned"}


def load_bundle(sources: Sources = SHIPPED) -> Bundle:
    """Read the modules, `sql/<folder>/<module>.sql`, and the files around them.

    Their order does not matter: bodies are not checked while they are applied (`steps.finish`).
    """

    def read(name: str) -> str:
        return (sources.sql / name).read_text(encoding="utf-8")

    modules = (path for path in sources.sql.glob("*/*.sql") if path.parent.name not in _APART)
    return Bundle(
        roles=read("roles.sql"),
        owner=read("owner.sql"),
        files={
            name: read(name) for name in sorted(path.relative_to(sources.sql).as_posix() for path in modules)
        },
        revoke=read("revoke.sql"),
        grants=read("grants.sql"),
    )
