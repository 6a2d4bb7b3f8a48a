"""Write docs/reference/openapi.json from the routes of the HTTP API.

`python tools/openapi.py` writes the document, `--check` fails when it is out of date.
"""

import json
import sys
from pathlib import Path

from hwqueue.serve import create_app
from hwqueue.server import ServerSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "openapi.json"


def document() -> str:
    """The document as it is to be."""
    app = create_app(ServerSettings(dsn=""))
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write or check the document; return the exit code."""
    wanted = document()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        print(f"{PAGE.name} is not up to date: run `make reference`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
