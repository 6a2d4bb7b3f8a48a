"""What is installed only with an extra: said by the name to install, when it is missing.

A producer needs psycopg alone. `hwqueue` and `hwqueue.schema` therefore load their larger parts
when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports in this block need an extra.

    Raises: ModuleNotFoundError, which says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hwqueue":
            raise  # nothing that an extra would bring
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'hwqueue[{extra}]'",
            name=error.name,
        ) from error


def loader(package: str, extra: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that imports names when they are first asked for.

    Args:
        package: The module that the names are read from.
        extra: What their modules need.
        modules: The module of each name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(extra):
            return getattr(import_module(modules[name]), name)

    return load
