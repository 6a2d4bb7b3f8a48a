"""What is installed only with an extra: said by the name to install, when it is missing.

A producer needs psycopg alone. `hwqueue` and `hwqueue.schema` therefore load their larger parts
when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports in this block need an extra.

    Raises: ModuleNotFoundError, which says how to install it; ImportError, where there is no libpq.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hwqueue":
            raise  # nothing that an extra would bring
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'hwqueue[{extra}]'", name=error.name
        ) from error
    except ImportError as error:
        if extra != "binary":
            raise
        raise ImportError(
            "psycopg finds no libpq: pip install 'hwqueue[binary]', or install your system's "
            "(Debian: libpq5, Fedora: libpq, Homebrew: libpq)"
        ) from error


def loader(package: str, extra: str, module: str, names: Collection[str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that imports a module when one of its names is first asked for.

    Args:
        package: What the names are read from.
        extra: What the module needs.
        module: Where the names are defined.
        names: Those that it answers for.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(extra):
            return getattr(import_module(module), name)

    return load
