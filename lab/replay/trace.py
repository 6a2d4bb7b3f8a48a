"""Read the two CSV files of an OpenB cluster trace; a bad cell is named, nothing is guessed.

Both the column names of the published files (`sn`, `model`, `name`) and the plain ones (`node`,
`gpu_model`, `pod`) are understood; further columns are left alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hwqueue.demo.model import WHOLE_GPU, Job, Machine, Trace
from hwqueue.errors import ConfigError

PUBLISHED_NAMES = {"sn": "node", "model": "gpu_model", "name": "pod"}
NODE_COLUMNS = ("node", "cpu_milli", "memory_mib", "gpu", "gpu_model")
POD_COLUMNS = (
    "pod",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "scheduled_time",
    "deletion_time",
)
QOS = ("Guaranteed", "LS", "Burstable", "BE")
PHASES = ("Running", "Failed", "Pending", "Succeeded")
MAX_GPUS_PER_NODE = 64
MAX_AMOUNT = 10**12
MAX_NAME = 200

T = TypeVar("T")


class TraceError(ConfigError):
    """A trace file cannot be used; the message names file, row, column and value."""


class Row:
    """One line of a CSV file, with checked access to its cells."""

    def __init__(self, path: Path, number: int, cells: Mapping[str, str]) -> None:
        self._path = path
        self._cells = cells
        self.number = number

    def error(self, column: str, problem: str) -> TraceError:
        """Build the error for one cell; `problem` says what is wrong and what would be right."""
        value = self._cells[column]
        return TraceError(f"{self._path}, row {self.number}, column {column}: {value[:80]!r} {problem}")

    def text(self, column: str) -> str:
        """Return a name of 1 to 200 printable characters."""
        value = self._cells[column]
        if not value:
            raise self.error(column, "is empty; a name is needed")
        if len(value) > MAX_NAME:
            raise self.error(column, f"has {len(value)} characters; at most {MAX_NAME} are allowed")
        if not value.isprintable():
            raise self.error(column, "holds control characters")
        return value

    def optional_text(self, column: str) -> str | None:
        """Return a name, or None for an empty cell."""
        return self.text(column) if self._cells[column] else None

    def choice(self, column: str, allowed: Sequence[str]) -> str:
        """Return one of `allowed`."""
        value = self._cells[column]
        if value not in allowed:
            raise self.error(column, f"is not one of {', '.join(allowed)}")
        return value

    def integer(self, column: str, low: int = 0, high: int = MAX_AMOUNT) -> int:
        """Return a whole number in [low, high]; `12` and `12.0` are the same."""
        value = self._cells[column]
        whole, _, fraction = value.partition(".")
        digits = whole.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or fraction.strip("0"):
            raise self.error(column, f"is not a whole number between {low} and {high}")
        if len(digits) > 18 or not low <= (number := int(whole)) <= high:
            raise self.error(column, f"is outside {low} .. {high}")
        return number


def read_trace(nodes: Path, pods: Path, *, ignore_gpu_spec: bool = False) -> Trace:
    """Read a node file and a pod file.

    `ignore_gpu_spec` drops the model constraints, which the trace's authors added themselves.

    Raises: TraceError.
    """
    return Trace(
        machines=_unique(nodes, "node", _rows(nodes, NODE_COLUMNS), _machine),
        jobs=_unique(pods, "pod", _rows(pods, POD_COLUMNS), lambda row: _job(row, ignore_gpu_spec)),
    )


def _machine(row: Row) -> Machine:
    gpus = row.integer("gpu", 0, MAX_GPUS_PER_NODE)
    model = row.optional_text("gpu_model")
    if gpus and model is None:
        raise row.error("gpu_model", f"names no model, but column gpu says {gpus} GPUs")
    if model is not None and not gpus:
        raise row.error("gpu_model", "names a model, but column gpu says 0 GPUs")
    return Machine(
        name=row.text("node"),
        cpu_milli=row.integer("cpu_milli"),
        memory_mib=row.integer("memory_mib"),
        gpus=gpus,
        gpu_model=model,
    )


def _job(row: Row, ignore_gpu_spec: bool) -> Job:
    num_gpu = row.integer("num_gpu", 0, MAX_GPUS_PER_NODE)
    created = row.integer("creation_time")
    scheduled = _scheduled(row, created)
    models = _gpu_models(row)
    return Job(
        name=row.text("pod"),
        cpu_milli=row.integer("cpu_milli"),
        memory_mib=row.integer("memory_mib"),
        num_gpu=num_gpu,
        gpu_milli=_gpu_milli(row, num_gpu),
        gpu_models=() if ignore_gpu_spec else models,
        qos=row.choice("qos", QOS),
        phase=row.choice("pod_phase", PHASES),
        created_at=created,
        scheduled_at=scheduled,
        deleted_at=row.integer("deletion_time", low=created if scheduled is None else scheduled),
    )


def _gpu_milli(row: Row, num_gpu: int) -> int:
    milli = row.integer("gpu_milli", 0, WHOLE_GPU)
    if num_gpu == 0 and milli != 0:
        raise row.error("gpu_milli", "must be 0, because num_gpu is 0")
    if num_gpu == 1 and milli == 0:
        raise row.error("gpu_milli", "must be 1 .. 1000, because num_gpu is 1")
    if num_gpu > 1 and milli != WHOLE_GPU:
        raise row.error("gpu_milli", f"must be 1000, because num_gpu is {num_gpu}")
    return milli


def _gpu_models(row: Row) -> tuple[str, ...]:
    spec = row.optional_text("gpu_spec")
    if spec is None:
        return ()
    models = tuple(dict.fromkeys(spec.split("|")))  # the published file repeats some alternatives
    if "" in models:
        raise row.error("gpu_spec", "has an empty alternative; write models as T4|P100")
    return models


def _scheduled(row: Row, created: int) -> int | None:
    if row.optional_text("scheduled_time") is None:
        return None
    return row.integer("scheduled_time", low=created)


def _rows(path: Path, columns: Sequence[str]) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file, strict=True))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text") from error
    except csv.Error as error:
        raise TraceError(f"{path}: is not valid CSV: {error}") from error
    if not lines or not any(lines[0]):
        raise TraceError(f"{path}: is empty; a header with {', '.join(columns)} is needed")
    header = _header(path, [name.strip() for name in lines[0]], columns)
    rows = [_row(path, number, header, cells) for number, cells in enumerate(lines[1:], 2) if cells]
    if not rows:
        raise TraceError(f"{path}: has a header but no rows")
    return rows


def _header(path: Path, found: list[str], columns: Sequence[str]) -> list[str]:
    header = [name if name in columns else PUBLISHED_NAMES.get(name, name) for name in found]
    missing = [column for column in columns if column not in header]
    if missing:
        raise TraceError(f"{path}: column {', '.join(missing)} is missing; found {', '.join(found)[:300]}")
    twice = sorted({name for name in columns if header.count(name) > 1})
    if twice:
        raise TraceError(f"{path}: column {', '.join(twice)} is there more than once")
    return header


def _row(path: Path, number: int, header: list[str], cells: list[str]) -> Row:
    if len(cells) != len(header):
        raise TraceError(f"{path}, row {number}: has {len(cells)} cells, but the header has {len(header)}")
    return Row(path, number, {name: cell.strip() for name, cell in zip(header, cells, strict=True)})


def _unique(path: Path, column: str, rows: list[Row], build: Callable[[Row], T]) -> tuple[T, ...]:
    first_seen: dict[str, int] = {}
    built: list[T] = []
    for row in rows:
        name = row.text(column)
        if name in first_seen:
            raise row.error(column, f"was already in row {first_seen[name]}; names must be unique")
        first_seen[name] = row.number
        built.append(build(row))
    return tuple(built)
