"""The `hwqueue` program: `hwqueue`, or `python -m hwqueue`."""

import gc
import sys

from hwqueue.extras import needs
from hwqueue.stopping import end_on_sigterm


def main() -> None:
    """Run the command line, or say how to install it."""
    end_on_sigterm()
    # What is imported stays until the end: collecting garbage among it, on the way and at exit,
    # would be a fifth of the time of a short command.
    gc.disable()
    try:
        with needs("cli"):
            from hwqueue.cli.main import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")
    gc.freeze()
    gc.enable()
    app()


if __name__ == "__main__":
    main()
