"""What a worker is told: where the database is, who the node is, how much it may run."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

from hwqueue.connections import named_conninfo, with_timeouts
from hwqueue.errors import ConfigError
from hwqueue.options import check_range
from hwqueue.types import Gpu
from hwqueue.types.nodes import id_of_node

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_NAME_CHARS = 253
_MAX_VERSION_CHARS = 100
_PLACEHOLDER = re.compile("%[hi]")
MOST_PROCESSES = 1000
"""How many worker processes may divide a machine."""
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_RANGES: Mapping[str, tuple[Any, Any]] = {
    "concurrency": (1, 10_000),
    "rack": (0, 2**32 - 1),
    "poll_interval": (timedelta(milliseconds=10), _HOUR),
    "heartbeat_interval": (timedelta(milliseconds=100), _HOUR),
    "shutdown_timeout": (timedelta(0), _DAY),
    "cancel_grace": (timedelta(0), _HOUR),
    "reap_interval": (timedelta(milliseconds=100), _DAY),
    **dict.fromkeys(("heartbeat_timeout", "prune_interval", "claim_timeout"), (timedelta(seconds=1), _DAY)),
}
_OPTIONAL = ("rack", "reap_interval", "prune_interval", "claim_timeout")
_CPU_CLASSES = ("best_effort", "whole_core", "strict_isolated")
_GPU_CLASSES = ("shared", "session_exclusive", "device_exclusive", "partition_exclusive")

# A connection to a machine that has vanished must fail, not hang: it would hold the claim loop.
_TIMEOUT_SECONDS = 10
_TIMEOUTS = {"keepalives_interval": "5", "tcp_user_timeout": "25000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How one worker process runs.

    Attributes:
        dsn: Connection string of the database, which may point at PgBouncer in transaction mode;
            None: that of `HWQUEUE_DSN`, else the `PG*` variables.
        url: Address of an HTTP server (`hwqueue serve`), instead of a database: `https://...`, or
            `http://` for one on this machine. The worker needs no login then, but a token of role
            `worker` that is bound to its name. None: it works on the database.
        token_file: File that holds this token.
        listen: Where to LISTEN for new work, which only shortens waits, on one connection more.
            "auto": at `dsn`, if notifications come through; else the worker says so and polls.
            "off": nowhere. Else the connection string of a direct connection. With `url` the server
            listens.
        sync_dsn: Connection string of a login with `hwqueue_operator`, which may set the defaults of
            tasks: the worker sets those of its app with it when it starts. None: it
            tries with its own login.
        queues: Queues to claim from, in no order; none: those that the app's tasks name.
        name: The node's name, unique in the database, at most 253 characters. One live worker per
            name: a second one supersedes the first.
        node_id: The node's id. None: derived from `name`, so that it outlives restarts.
        labels: The node's labels. They are added to the detected ones and win over them.
        app_version: The version of the code that this worker runs, 1 to 100 characters: the node
            label `app_version`, for runs of workflows that are pinned to a version. None: no label.
        capacity: What may be set aside: `cpu_milli`, `memory_mib` and custom countables, integers
            from 0 to 10**12. None: detected (see `detect`); `{}`: nothing is counted.
        gpus: The node's GPUs, whole ones in PCI bus order, parts of them (MIG) anywhere. None:
            detected, parts included. `()`: it has none.
        rack: Number of the rack, 0 to 2**32 - 1. None: unknown.
        detect: Whether labels, capacity, cores and GPUs that are not given are read from the
            machine.
        cpu_isolation: CPU classes that the node honours, beside best_effort: "whole_core",
            "strict_isolated". They need `detect`, which finds the cores, and a system that can pin
            (Linux). Handlers in threads and processes are pinned, async ones are not.
        gpu_exclusivity: GPU classes that it honours, beside shared: "session_exclusive",
            "device_exclusive", "partition_exclusive".
        default_cpu_isolation: The class of leases that ask for none; one of those honoured. None:
            best_effort.
        gpu_share_mode: "exclusive": every GPU has one lease at a time; "fractional": leases may
            share one. None: "fractional".
        concurrency: Handlers that run at once, 1 to 10000.
        claim_ahead: How many leases of short tasks may be claimed before a slot is free for them, 0
            to 10000. "auto": 64, or eight for each slot and 1000 at most; mostly it is fewer.
        poll_interval: Mean wait before an idle worker asks again, 10 ms to 1 h.
        claim_timeout: How long a claim lives without a heartbeat, 1 s to 1 day. None: as the
            lease or its queue says.
        heartbeat_interval: Longest wait between heartbeats, 100 ms to 1 h. Claims that live
            shorter are heartbeated after a quarter of their time.
        heartbeat_timeout: Silence after which the node counts as dead, longer than
            `heartbeat_interval`.
        reap_interval: Mean time between two calls of `reap`, which brings back the leases of dead
            workers, 100 ms to 1 day. Many workers together reap at most five times as often. None: it
            does not; something else has to.
        prune_interval: Mean time between two calls of `prune`, which deletes what queues keep no
            longer, 1 s to 1 day. Many workers together prune at most twice as often. None: it
            does not.
        shutdown_timeout: How long a graceful stop waits for running handlers, 0 to 1 day. Leases of
            those that go on are then handed back, and start again from their top.
        cancel_grace: How long a cancelled handler has before it is killed (process) or left
            behind (thread), 0 to 1 h.
        deregister_on_stop: Whether a graceful stop takes the node out of the fleet, so that it is
            not reported as silent. A node stays all the same that holds claims, or that an operator
            has cordoned, tainted or attested.
        share: Which part of the machine is the node's, where several workers divide it: (0, 4) is
            the first of four. Capacity is divided evenly, given or detected, and GPUs go round; a
            worker sees (`CUDA_VISIBLE_DEVICES`) its own alone. Cores are not divided, so
            `cpu_isolation` does not go with it, nor does `node_id`.
        pass_environment: Names of environment variables that handlers in child processes get
            although they may hold the worker's credentials (`PG*`, `HWQUEUE_*`).

    Raises:
        ConfigError: A value is out of range; the message names the field.
    """

    dsn: str | None = field(default=None, repr=False)
    url: str | None = None
    token_file: Path | None = None
    listen: str = field(default="auto", repr=False)
    sync_dsn: str | None = field(default=None, repr=False)
    queues: tuple[str, ...] = ()
    name: str = field(default_factory=socket.gethostname)
    node_id: UUID | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    app_version: str | None = None
    capacity: Mapping[str, int] | None = None
    gpus: tuple[Gpu, ...] | None = None
    rack: int | None = None
    detect: bool = True
    cpu_isolation: tuple[str, ...] = ()
    gpu_exclusivity: tuple[str, ...] = ()
    default_cpu_isolation: str | None = None
    gpu_share_mode: str | None = None
    concurrency: int = 10
    claim_ahead: int | Literal["auto"] = "auto"
    poll_interval: timedelta = timedelta(seconds=1)
    claim_timeout: timedelta | None = None
    heartbeat_interval: timedelta = timedelta(seconds=15)
    heartbeat_timeout: timedelta = timedelta(seconds=45)
    reap_interval: timedelta | None = timedelta(seconds=5)
    prune_interval: timedelta | None = timedelta(minutes=1)
    shutdown_timeout: timedelta = timedelta(seconds=30)
    cancel_grace: timedelta = timedelta(seconds=5)
    deregister_on_stop: bool = True
    share: tuple[int, int] = (0, 1)
    pass_environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_names()
        self._check_url()
        for name, (low, high) in _RANGES.items():
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_range(name, getattr(self, name), low, high)
        if self.claim_ahead != "auto":
            check_range("claim_ahead", self.claim_ahead, 0, 10_000)
        for key, value in (self.capacity or {}).items():
            check_range(f"capacity.{key}", value, 0, 10**12)
        self._check_isolation()
        self._check_share()
        if self.heartbeat_timeout <= self.heartbeat_interval:
            raise ConfigError(
                f"heartbeat_timeout ({self.heartbeat_timeout}) must be longer than "
                f"heartbeat_interval ({self.heartbeat_interval}), or the node looks dead between "
                "two heartbeats"
            )

    @property
    def isolates_cores(self) -> bool:
        """Whether leases may have whole cores of the node to themselves."""
        return any(kind != "best_effort" for kind in self.cpu_isolation)

    @property
    def most_ahead(self) -> int:
        """How many leases may be claimed ahead of free slots."""
        return min(max(8 * self.concurrency, 64), 1000) if self.claim_ahead == "auto" else self.claim_ahead

    @property
    def effective_node_id(self) -> UUID:
        """`node_id`, or the id that belongs to `name`."""
        return self.node_id or id_of_node(self.name)

    def _check_url(self) -> None:
        if (self.url is None) != (self.token_file is None):
            raise ConfigError("url and token_file go together")
        if self.url is None:
            return
        try:
            address = urlsplit(self.url)
            is_safe = address.hostname is not None and (
                address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOOPBACK)
            )
        except ValueError:
            is_safe = False
        if not is_safe:
            raise ConfigError(
                f"url: {self.url!r} is not https://HOST", hint="http:// would show the token to the network"
            )
        for name in ("dsn", "sync_dsn", "node_id"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} does not go with url")
        if self.listen not in ("auto", "off"):
            raise ConfigError("listen is auto or off with url: the server listens")

    def _check_names(self) -> None:
        if not isinstance(self.queues, tuple):
            raise ConfigError(f"queues must be a tuple of queue names, not {self.queues!r}")
        if not all(isinstance(queue, str) and queue for queue in self.queues):
            raise ConfigError(f"queues holds an empty or non-text name: {self.queues!r}")
        if not 1 <= len(self.name) <= _MAX_NAME_CHARS:
            raise ConfigError(f"name must have 1 to {_MAX_NAME_CHARS} characters: {self.name!r}")
        version = self.app_version
        if version is None:
            return
        if not isinstance(version, str) or not 1 <= len(version) <= _MAX_VERSION_CHARS:
            raise ConfigError(f"app_version must have 1 to {_MAX_VERSION_CHARS} characters: {version!r}")
        label = self.labels.get("app_version", version)
        if label != version:
            raise ConfigError(f"app_version is {version!r}, the label app_version {label!r}: set one of them")

    @property
    def own_labels(self) -> dict[str, Any]:
        """`labels`, and the one of `app_version`."""
        version = {} if self.app_version is None else {"app_version": self.app_version}
        return {**self.labels, **version}

    def _check_isolation(self) -> None:
        _check_classes("cpu_isolation", self.cpu_isolation, _CPU_CLASSES)
        _check_classes("gpu_exclusivity", self.gpu_exclusivity, _GPU_CLASSES)
        default, mode = self.default_cpu_isolation, self.gpu_share_mode
        if default not in (None, "best_effort", *self.cpu_isolation):
            raise ConfigError(f"default_cpu_isolation is {default!r}, cpu_isolation has it not")
        if mode not in (None, "exclusive", "fractional"):
            raise ConfigError(f"gpu_share_mode must be exclusive or fractional, not {mode!r}")
        if self.isolates_cores and not hasattr(os, "sched_setaffinity"):
            raise ConfigError(f"cpu_isolation {self.cpu_isolation!r}: this system cannot pin")

    def _check_share(self) -> None:
        index, count = self.share
        check_range("share[1]", count, 1, MOST_PROCESSES)
        check_range("share[0]", index, 0, count - 1)
        if count == 1:
            return
        if self.isolates_cores:
            raise ConfigError(
                f"cpu_isolation {self.cpu_isolation!r}: several processes of one machine cannot "
                "set cores aside; run one process"
            )
        if self.node_id is not None:
            raise ConfigError("node_id: several processes of one machine need an id each")


def worker_conninfo(conninfo: str | None) -> str:
    """The connection string with the worker's timeouts, for what it does not say itself."""
    named = named_conninfo(conninfo, "the DSN")
    return with_timeouts(named, seconds=_TIMEOUT_SECONDS, **_TIMEOUTS)


def name_of_template(template: str, index: int = 0) -> str:
    """A node's name: `%h` stands for the host's name, `%i` for the index of the process.

    Raises: ConfigError: Another letter follows a `%`.
    """
    unknown = _PLACEHOLDER.sub("", template).partition("%")
    if unknown[1]:
        raise ConfigError(
            f"name: {template!r} holds %{unknown[2][:1]}",
            hint="%h is the name of the host, %i the index of the process",
        )
    values = {"%h": socket.gethostname(), "%i": str(index)}
    return _PLACEHOLDER.sub(lambda found: values[found[0]], template)


def _check_classes(field_name: str, classes: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not isinstance(classes, tuple) or not set(classes) <= set(known):
        raise ConfigError(f"{field_name} must be a tuple of {', '.join(known)}, not {classes!r}")
