"""What options mean: one text for each, told by the command line, the HTTP API and the reference."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_LINK = r"\[([^]]*)\]\([^)]*\)"
_ASIDE = re.compile(rf" \({_LINK}(, {_LINK})*\)")


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """The texts of hwqueue/meanings.toml by kind and option, in Markdown with links."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def text_of(kind: str, option: str) -> str:
    """The text of an option: that of its kind, else that of a spawn. Raises: KeyError."""
    return meanings()[kind].get(option) or meanings()["spawn"][option]


def meaning(name: str, *more: str) -> str:
    """What an option means, without links, then more sentences. name: `spawn.priority`, say."""
    text = _ASIDE.sub("", text_of(*name.split(".")))
    return " ".join([re.sub(_LINK, r"\1", text), *more])


@cache
def attributes(kind: type) -> Mapping[str, str]:
    """The attributes in the docstring of a class."""
    text = inspect.getdoc(kind) or ""
    part = text.partition("Attributes:\n")[2].partition("\nRaises:")[0]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", part, re.M | re.S)
    return {name: " ".join(about.split()) for name, about in found}
