"""The list of planted bugs, and a copy of the project with one of them."""

import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One edit that breaks one rule.

    `file` is relative to the project; `old` stands in it exactly once. `tests` are arguments of
    pytest: at least one of those tests must fail with the edit.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

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
    """The whole list, in the order of the file."""
    rows = tomllib.loads(LIST.read_text())["mutant"]
    return [Mutant(**(row | {"tests": tuple(row["tests"])})) for row in rows]


def copy_project(target: Path) -> None:
    """Copy what git tracks, and files that are new, as they are in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
