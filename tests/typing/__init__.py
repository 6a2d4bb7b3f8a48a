"""What type checkers make of typed tasks: `make check` runs mypy and pyright over this folder."""
