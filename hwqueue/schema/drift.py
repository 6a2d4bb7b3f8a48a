"""Compare what a database holds with what this package installs."""

from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from hwqueue.connections import in_utf8
from hwqueue.schema.bundle import ROLES
from hwqueue.schema.catalog import Catalog, load_manifest, read_catalog
from hwqueue.schema.files import SHIPPED, Sources
from hwqueue.schema.session import act_as_owner, pin, read_standing, refuse_strangers_schema
from hwqueue.schema.state import Installed, head_revision, is_current, known_revisions, read_installed

MANIFEST = "schema.manifest.json"


@dataclass(frozen=True)
class Drift:
    """One thing that is not as installed. `facts` names what differs, when `problem` is that."""

    kind: str
    name: str
    problem: Literal["missing", "unexpected", "differs"]
    facts: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        found = (f"{fact} is {now!r}, not {then!r}" for fact, (then, now) in self.facts.items())
        return f"{self.kind} {self.name}: {self.problem}" + "".join(f"; {text}" for text in found)


@dataclass(frozen=True)
class CheckReport:
    """What a check found. `installed` is None when the database has no hwqueue schema.

    known: whether this package can upgrade it, since it knows the revision of the tables.
    """

    installed: Installed | None
    expected_revision: str
    current: bool
    drifts: tuple[Drift, ...]
    known: bool = True

    @property
    def ok(self) -> bool:
        """Nothing to upgrade and nothing changed by hand."""
        return self.current and not self.drifts


def check(dsn: str, *, sources: Sources = SHIPPED, from_owner: str | None = None) -> CheckReport:
    """Compare functions, tables, columns, constraints, indexes, views and grants; changes nothing.

    Where roles were left out, of all grants only those to PUBLIC are compared. The text of a view
    is only compared on the major version of the server that the manifest was made on, as each
    prints its own.

    Args:
        from_owner: Whose schema may be read, where it is neither the user's own, nor a superuser's,
            nor hwqueue_owner's: reading it may run what is in it with the user's rights.

    Raises:
        ConfigError: the schema is somebody's who is not `from_owner`.
    """
    with psycopg.connect(in_utf8(dsn)) as connection:
        pin(connection)
        standing = read_standing(connection, ROLES)
        refuse_strangers_schema(standing, from_owner)
        if standing.may_be_owner:
            act_as_owner(connection, standing)
        # a schema that was not there a moment ago may be anybody's: nothing is read from it
        installed = read_installed(connection) if standing.schema_owner else None
        drifts: tuple[Drift, ...] = ()
        if installed is not None:
            expected, major = load_manifest(sources.sql / MANIFEST)
            found = read_catalog(connection)
            if not installed.roles_installed:
                expected, found = _public_grants_only(expected), _public_grants_only(found)
            ignored: set[str] = set()
            if connection.info.server_version // 10000 != major:
                ignored.add("view_definition")
            drifts = compare(expected, found, ignored=ignored)
    return CheckReport(
        installed=installed,
        expected_revision=head_revision(sources),
        current=is_current(installed, sources),
        drifts=drifts,
        known=installed is None or installed.revision in known_revisions(sources),
    )


def compare(expected: Catalog, found: Catalog, *, ignored: set[str] | None = None) -> tuple[Drift, ...]:
    """Every difference between two catalogs, by kind and name; `ignored` are names of facts."""
    drifts = []
    for kind in sorted(expected.keys() | found.keys()):
        then, now = expected.get(kind, {}), found.get(kind, {})
        for name in sorted(then.keys() | now.keys()):
            if name not in now:
                drifts.append(Drift(kind, name, "missing", {}))
            elif name not in then:
                drifts.append(Drift(kind, name, "unexpected", {}))
            elif facts := _differences(then[name], now[name], ignored or set()):
                drifts.append(Drift(kind, name, "differs", facts))
    return tuple(drifts)


def _public_grants_only(catalog: Catalog) -> Catalog:
    """The catalog without grants to roles; what is open to everybody counts with and without."""

    def public_only(facts: dict[str, Any]) -> dict[str, Any]:
        if "grants" not in facts:
            return facts
        return facts | {"grants": [g for g in facts["grants"] if g.startswith("public: ")]}

    return {
        kind: {name: public_only(facts) for name, facts in objects.items()}
        for kind, objects in catalog.items()
    }


def _differences(then: dict[str, Any], now: dict[str, Any], ignored: set[str]) -> dict[str, tuple[Any, Any]]:
    return {
        fact: (then.get(fact), now.get(fact))
        for fact in sorted((then.keys() | now.keys()) - ignored)
        if then.get(fact) != now.get(fact)
    }
