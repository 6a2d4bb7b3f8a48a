"""Somebody who does what a page says, block by block, in one shell.

| written | done |
|---|---|
| a block of python | the file that its first line names |
| a block of sh | run |
| a block of console | each command is run and has to print what follows it |

Compared without widths of columns; times, spans and ids may be others. An id of the page stands for
the one in its place from then on.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it.token import Token

from tests.e2e.conftest import Shell
from tests.e2e.worker_support import BOUND_SECONDS
from tests.shell_lines import session

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MASKS = (
    (ID, "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(?:\+00(:00)?|Z)"), "TIME"),
    (re.compile(r"\b\d+(?:ms|s|\.\d+ ?s|[mhd](?:\d+[smh])?| s| min| h \d\d min| d \d+ h)\b"), "SPAN"),
    (re.compile(" +"), " "),
)


@dataclass
class Reader:
    """What they have seen differ, and how many commands they have compared.

    Attributes:
        rereads: Commands that change nothing, by their beginnings: asked again until what the page
            tells has happened.
        told: What the last block of sh printed.
    """

    shell: Shell
    rereads: tuple[str, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    compared: int = 0
    told: str = ""

    def block(self, token: Token) -> None:
        """Do a block, by its language."""
        if token.info == "python":
            name = token.content.partition("\n")[0].removeprefix("# ")
            folder = Path(self.shell.run("pwd").strip())
            (folder / name).write_text(token.content, encoding="utf-8")
        elif token.info == "sh":
            self.told = self.shell.run(self.typed(token.content))
        else:
            assert token.info == "console", f"nobody knows what to do with {token.info}"
            for command, expected in session(token.content):
                self.compare(command, "\n".join(expected))

    def typed(self, text: str) -> str:
        """A command or an address as it stands, with the ids of this run."""
        for there, here in self.ids.items():
            text = text.replace(there, here)
        return text

    def printed(self, command: str) -> str:
        """What a command prints on both streams."""
        return self.shell.run(f"{{ {self.typed(command)}\n}} 2>&1").rstrip("\n")

    def compare(self, command: str, expected: str) -> None:
        """Run a command that prints what the page says; differences are told together."""
        printed = self.printed(command)
        until = time.monotonic() + BOUND_SECONDS
        while (
            masked(printed) != masked(expected)
            and command.startswith(self.rereads)
            and not self.differs  # what follows may differ for the same reason
            and time.monotonic() < until
        ):
            printed = self.printed(command)
        if masked(printed) != masked(expected):
            self.differs.append(f"$ {command}\n{printed}")
        for there, here in zip(ID.findall(expected), ID.findall(printed), strict=False):
            known = self.ids.setdefault(there, here)
            assert known == here, f"{command}: {there} is another id"
        self.compared += 1

    def finish(self) -> None:
        """All was as the page says."""
        assert not self.differs, "the page says something else than:\n\n" + "\n\n".join(self.differs)


def masked(text: str) -> str:
    """Text without what differs from run to run."""
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return "\n".join(line.rstrip() for line in text.splitlines())
