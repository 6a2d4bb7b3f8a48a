"""The scripts of others that the dashboard serves: fetch them, check that they are what they were.

    python tools/vendor_static.py            # check: every file is there and has its sha256
    python tools/vendor_static.py --refresh  # fetch them with npm, and write the manifest

To take another version, change it in manifest.json and refresh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent / "hwqueue" / "dashboard" / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"


def main() -> int:
    """Check, or refresh and check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--refresh", action="store_true", help="fetch the files with npm")
    manifest = json.loads(MANIFEST.read_text())
    if parser.parse_args().refresh:
        for name, package in manifest.items():
            _fetch(name, package)
        MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
    wrong = problems(manifest)
    print("\n".join(wrong) or "the vendored files are what the manifest says")
    return 1 if wrong else 0


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """What is missing, changed, or not in the manifest."""
    found = []
    known = {MANIFEST.name}
    for package in manifest.values():
        for file_name, entry in package["files"].items():
            known.add(file_name)
            path = VENDOR / file_name
            if not path.exists():
                found.append(f"{file_name} is missing: run tools/vendor_static.py --refresh")
            elif _sha256(path.read_bytes()) != entry["sha256"]:
                found.append(f"{file_name} is not what it was: its sha256 differs")
    extra = sorted(path.name for path in VENDOR.iterdir() if path.name not in known)
    return found + [f"{name} is not in the manifest" for name in extra]


def _fetch(name: str, package: dict[str, Any]) -> None:
    """Take the files out of a package, and note what they are."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["npm", "pack", "--json", "--pack-destination", folder, f"{name}@{package['version']}"],
            check=True,
            capture_output=True,
            text=True,
        )
        archive = Path(folder) / json.loads(made.stdout)[0]["filename"]
        with tarfile.open(archive) as packed:
            for file_name, entry in package["files"].items():
                member = packed.extractfile(f"package/{entry['from']}")
                if member is None:
                    raise FileNotFoundError(f"{entry['from']} is not in {name}")
                content = member.read()
                (VENDOR / file_name).write_bytes(content)
                entry["sha256"] = _sha256(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
