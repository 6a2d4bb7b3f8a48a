"""Which workflow, and the options of the submission of a run, as people type them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Argument, Option

from hwqueue.cli.inputs import identifier, json_object, labels, moment_after, pairs
from hwqueue.cli.spawning import A_LABEL, A_MOMENT, A_TAG, AN_OBJECT, OnConflict, typed
from hwqueue.errors import ConfigError
from hwqueue.types import RunOptions, Unique

Mode = Literal["and", "override", "replace"]

SpecFile = Annotated[
    str | None, Argument(metavar="FILE", help="The specification: a file, JSON, or - for stdin.")
]
AppName = Annotated[str | None, Option("--app", help="module:name of a hwqueue.Workflow, instead.")]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The options of a submission."""

    version: Annotated[int | None, Option(min=1, help=typed("submit.version"))] = None
    tags: Annotated[
        list[str] | None, Option("--tags", "--node-label", help=typed("submit.affinity_tags", A_TAG))
    ] = None
    placement: Annotated[str | None, Option(help=typed("submit.placement", AN_OBJECT))] = None
    affinity: Annotated[Mode | None, Option(help=typed("submit.affinity"), show_default="and")] = None
    step: Annotated[list[str] | None, Option(help=typed("submit.steps", "As NAME=JSON; repeatable."))] = None
    priority: Annotated[int | None, Option(help=typed("submit.priority"))] = None
    label: Annotated[list[str] | None, Option(help=typed("submit.labels", A_LABEL))] = None
    deadline: Annotated[str | None, Option(help=typed("submit.deadline", A_MOMENT))] = None
    available_at: Annotated[
        str | None, Option("--available-at", "--delay", help=typed("submit.available_at", A_MOMENT))
    ] = None
    key: Annotated[str | None, Option(help=typed("submit.idempotency_key"))] = None
    unique: Annotated[str | None, Option(help=typed("submit.unique"))] = None
    on_conflict: Annotated[OnConflict, Option(help="Goes with --unique, which says what it does.")] = "keep"
    run_id: Annotated[str | None, Option(help=typed("submit.run_id"))] = None
    tenant: Annotated[str | None, Option(help=typed("submit.tenant"))] = None
    app_version: Annotated[str | None, Option(help=typed("submit.app_version"))] = None

    def options(self) -> RunOptions:
        """What was typed, as a client takes it. Raises: ConfigError."""
        return {
            "version": self.version,
            "affinity_tags": labels(self.tags, "--tags") or None,
            "placement": json_object(self.placement, "--placement") if self.placement else None,
            "affinity": self.affinity,
            "labels": pairs(self.label, "--label") if self.label else None,
            "steps": steps_of(self.step),
            "tenant": self.tenant,
            "app_version": self.app_version,
            "priority": self.priority,
            "deadline": moment_after(self.deadline, "--deadline"),
            "available_at": moment_after(self.available_at, "--available-at"),
            "idempotency_key": self.key,
            "unique": Unique(key=self.unique, on_conflict=self.on_conflict) if self.unique else None,
            "run_id": identifier(self.run_id, "--run-id") if self.run_id else None,
        }


def steps_of(given: list[str] | None) -> dict[str, dict[str, Any]] | None:
    """Options of single steps, `NAME={...}`. Raises: ConfigError."""
    found: dict[str, dict[str, Any]] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign:
            raise ConfigError(
                f"--step: {each[:80]!r} is not NAME=JSON",
                hint="""such as --step 'train={"options": {"max_attempts": 5}}'""",
            )
        if name in found:
            raise ConfigError(f"--step: {name[:80]} is given twice", hint="give its parts in one")
        found[name] = json_object(value, f"--step {name}")
    return found or None
