"""Make a release, up to the upload: `make release`.

Builds the source distribution and, from it, the wheel; checks what an index would show; installs
the wheel in a bare environment, and follows the tutorial with that. The last line says how to
upload, once the owner's addresses are in pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PLACEHOLDER = "OWNER"
TUTORIAL = "tests/e2e/test_tutorial.py::test_the_tutorial"


def run(*command: str | Path, **more: str) -> None:
    """Run a command of this release; a failure ends it."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, env=os.environ | more, check=True)


def size(path: Path) -> str:
    return f"{sum(each.stat().st_size for each in path.rglob('*') if each.is_file()) / 2**20:.1f} MiB"


def how_to_upload(project: dict[str, Any], changed: str) -> str:
    """The commands of the upload, or why there is none yet. changed: files that are not committed."""
    if PLACEHOLDER in str([project["maintainers"], project["urls"]]):
        return f"not to be uploaded: maintainers and urls in pyproject.toml still say {PLACEHOLDER}"
    if changed:
        return f"not to be uploaded: some of it is not committed\n{changed}"
    tag = f"v{project['version']}"
    return (
        "upload it; its page links to the files of the tag:\n"
        f"  git tag {tag} && git push origin {tag}\n"
        f"  {sys.executable} -m twine upload dist/*"
    )


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heading = f"## {project['version']} "
    if heading not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        print(f"CHANGELOG.md has no part that begins with {heading!r}", file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    [wheel] = DIST.glob("*.whl")
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, wheel)
        print(f"hwqueue alone, with what it needs: {size(Path(folder) / 'lib')}, pip among it")
        run(*pip, f"hwqueue[all,test] @ {wheel.as_uri()}")
        run(sys.executable, "-m", "pytest", "-q", TUTORIAL, HWQUEUE_TEST_PROGRAMS=str(programs))
    for path in sorted(DIST.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 2**20:.2f} MiB")
    status = subprocess.run(
        ["git", "status", "--short"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    print(how_to_upload(project, status.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
