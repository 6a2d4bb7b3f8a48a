"""The list of planted bugs, and a copy of the project with one of them."""

import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
_CHANGE = re.compile(r"\[-(.*?)-\]|\{\+(.*?)\+\}", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """One edit that breaks one rule.

    `file` is relative to the project. `diff` is a part of it, with what the edit removes and adds:
    `[-removed-]`, `{+added+}`. `tests` are arguments of pytest: at least one of those tests must
    fail with the edit.
    """

    file: str
    name: str
    breaks: str
    diff: str
    tests: tuple[str, ...]

    @property
    def old(self) -> str:
        """What stands in the file, exactly once."""
        return _CHANGE.sub(lambda found: found[1] or "", self.diff)

    @property
    def new(self) -> str:
        """What the edit makes of it."""
        return _CHANGE.sub(lambda found: found[2] or "", self.diff)

    def edit(self, root: Path) -> None:
        """Plant the bug in a copy of the project.

        Raises:
            ValueError: the old text is not in the file exactly once: the list is out of date.
        """
        path = root / self.file
        text = path.read_text() if path.exists() else ""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text is {found} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new))

    def undo(self, root: Path) -> None:
        """Take the bug out of the copy again."""
        shutil.copyfile(ROOT / self.file, root / self.file)


def all_mutants() -> list[Mutant]:
    """The whole list, file by file."""
    return [
        Mutant(file=file, name=name, **(row | {"tests": tuple(row["tests"])}))
        for file, rows in tomllib.loads(LIST.read_text()).items()
        for name, row in rows.items()
    ]


def copy_project(target: Path) -> None:
    """Copy what git tracks, and files that are new, as they are in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
