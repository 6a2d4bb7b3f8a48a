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

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PLACEHOLDER = "OWNER"


def run(*command: str | Path, **more: str) -> None:
    """Run a command of this release; a failure ends it."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, env=os.environ | more, check=True)


def size(path: Path) -> str:
    return f"{sum(each.stat().st_size for each in path.rglob('*') if each.is_file()) / 2**20:.1f} MiB"


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, urls = project["version"], project["urls"]
    heading = f"## {version} "
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
        tutorial = "tests/e2e/test_tutorial.py::test_the_tutorial"
        run(sys.executable, "-m", "pytest", "-q", tutorial, HWQUEUE_TEST_PROGRAMS=str(programs))
    for path in sorted(DIST.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 2**20:.2f} MiB")
    if any(PLACEHOLDER in url for url in urls.values()):
        print(f"not to be uploaded: [project.urls] in pyproject.toml still says {PLACEHOLDER}")
    else:
        print(f"upload it: {sys.executable} -m twine upload dist/*; then: git tag v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
