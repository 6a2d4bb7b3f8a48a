"""Commands in documents: the blocks of a page, and what calls of `hwqueue` there are in a block."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

SHELL = ("sh", "shell", "bash")
_PROMPT = "$ "
_ASSIGNMENT = re.compile(r"\w+=")
_BREAK = set("();<>|&")


def tokens(page: Path, heading: str | None = None) -> list[Token]:
    """A page, or what is below one of its headings, as markdown-it reads it."""
    return _parsed(page.read_text(encoding="utf-8") if heading is None else part(page, heading))


def part(page: Path, heading: str) -> str:
    """What is below a heading of a page, up to the next one that is not below it."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    headings = [token for token in tokens(page) if token.type == "heading_open" and token.map]
    titles = {token.map[0]: int(token.tag[1:]) for token in headings if token.map}
    [start] = [at for at in titles if lines[at].lstrip("#").strip() == heading]
    later = (at for at, level in titles.items() if at > start and level <= titles[start])
    return "".join(lines[start + 1 : next(later, None)])


def fenced(text: str, language: str) -> list[str]:
    """The fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@cache  # several tests read each page
def _parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def commands(page: Path) -> Iterator[str]:
    """Every command line in a page's blocks; where output is shown, those after `$ `."""
    for token in tokens(page):
        if token.type == "fence" and token.info in SHELL:
            yield from whole_lines(token.content.splitlines())
        elif token.type == "fence" and token.info in ("", "console"):
            yield from (command for command, _ in session(token.content))


def mentions(page: Path) -> Iterator[str]:
    """What stands between single backquotes in a page's text."""
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


def session(text: str) -> Iterator[tuple[str, list[str]]]:
    """A block with output: each command after `$ `, and the lines that it prints."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
    for start, end in pairwise([*starts, len(lines)]):
        part = [lines[start].removeprefix(_PROMPT), *lines[start + 1 : end]]
        command = next(whole_lines(part))
        yield command, part[command.count("\n") + 1 :]


def whole_lines(lines: list[str]) -> Iterator[str]:
    """Lines of a shell, with those that go on joined."""
    begun = ""
    for line in lines:
        begun += line
        if begun.endswith("\\") or not _closed(begun):
            begun += "\n"
            continue
        yield begun
        begun = ""
    assert not begun, f"has no end: {begun}"


def calls(command: str) -> Iterator[list[str]]:
    """The arguments of every call of `hwqueue` in a line: in pipes, too, and in `$(...)`."""
    words: list[str] = []
    skip = False
    for word in [*_split(command), ";"]:
        if set(word) <= _BREAK and not set(word) & {"<", ">"}:
            yield from _call(words)
            words = []
        elif set(word) <= _BREAK:
            if words and words[-1] in ("1", "2"):
                words.pop()
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
            if within := re.search(r"\$\((.*)\)", word):  # in quotes
                yield from calls(within[1])


def _call(words: list[str]) -> Iterator[list[str]]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] == "export"):
        words = words[1:]
    if words and words[0] == "hwqueue":
        yield words[1:]


def _split(command: str) -> list[str]:
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _closed(text: str) -> bool:
    try:
        _split(text)
    except ValueError:
        return False
    return True
