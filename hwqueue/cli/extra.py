"""Commands that need an extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from hwqueue.errors import ConfigError


@contextmanager
def required(extra: str) -> Iterator[None]:
    """What this block imports needs an extra. Raises: ConfigError, which says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hwqueue":
            raise  # nothing that an extra would bring
        raise ConfigError(f"{error.name} is not installed", hint=f"pip install 'hwqueue[{extra}]'") from error
