"""The limits that Linux's control groups (cgroups) set for this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Each limit that holds, of the process's own group and of those above it.

    Attributes:
        cpu_milli: CPU time, 1000 for one CPU.
        memory_bytes: Memory. Version 1 writes a number near 2^63 for "no limit".
    """

    cpu_milli: tuple[int, ...]
    memory_bytes: tuple[int, ...]


def cgroup_limits(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> CgroupLimits:
    """The limits below `root`, where the system mounts its groups, for the groups in `own`.

    A line of `own` is `0::/system.slice/w.service` in version 2, and
    `4:memory:/docker/5c2d` in version 1, which has a mount for each controller. A container that
    has a cgroup namespace, or whose own group is mounted at the root, finds its limits there: so
    each folder from the root to the group is read, and one that is missing says nothing.
    """
    paths = {"": PurePosixPath("/")}  # controller -> group
    for line in read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = PurePosixPath(group)
    cpu: list[int] = []
    memory: list[int] = []
    for folder in (*_folders(root, paths[""]), *_folders(root / "unified", paths[""])):
        quota, _, period = read(folder / "cpu.max").strip().partition(" ")
        cpu += _share(quota, period)
        memory += _numbers(read(folder / "memory.max"))
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _folders(root / name, paths.get("cpu", PurePosixPath("/"))):
            cpu += _share(read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us"))
    for folder in _folders(root / "memory", paths.get("memory", PurePosixPath("/"))):
        memory += _numbers(read(folder / "memory.limit_in_bytes"))
    return CgroupLimits(tuple(cpu), tuple(memory))


def _folders(mount: Path, group: PurePosixPath) -> Iterator[Path]:
    """The folder of a mount, and those below it down to a group's."""
    folder = mount
    yield folder
    # A group outside of the process's own namespace begins with "..".
    for name in group.parts[1:]:
        if name != "..":
            folder = folder / name
            yield folder


def _share(quota: str, period: str) -> list[int]:
    """Thousandths of a CPU; none without a limit (`max`, or -1 in version 1)."""
    return [q * 1000 // p for q in _numbers(quota) for p in _numbers(period) if p > 0]


def _numbers(text: str) -> list[int]:
    return [int(text)] if text.strip().isdecimal() else []


def read(path: Path) -> str:
    """The text of a file; none where there is none."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
