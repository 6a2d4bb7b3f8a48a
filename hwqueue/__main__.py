"""The `hwqueue` program: `hwqueue`, or `python -m hwqueue`."""

import sys

from hwqueue.extras import needs


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        with needs("cli"):
            from hwqueue.cli.main import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")
    app()


if __name__ == "__main__":
    main()
