"""Print what `pip install hwqueue` brings, for each extra: packages, size, seconds.

`python tools/install_sizes.py [TREE ...]` builds the wheel of each source tree (of this checkout,
if none is named) and installs it into empty virtual environments, without pip's cache. Packages
and sizes leave out pip and setuptools; seconds are those of `pip install`, with the download. It
needs PyPI and is run by hand; lab/figures.md has its figures.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
# Not for those who use the package.
LEFT_OUT = {"dev", "docs"}


def wheel_of(tree: Path, folder: Path) -> Path:
    """Build the wheel of a source tree into an empty folder."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(folder), str(tree)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def extras_of(tree: Path) -> list[str]:
    """The extras of a source tree, an empty one for none."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return ["", *sorted(set(project["optional-dependencies"]) - LEFT_OUT)]


def size(folder: Path) -> tuple[int, int]:
    """The packages in a virtual environment, and the bytes of their files."""
    [packages] = folder.glob("lib/python*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(list(packages.glob("*.dist-info"))), sum(path.stat().st_size for path in files)


def install(wheel: Path, extra: str, folder: Path) -> tuple[int, float, float]:
    """Install into a new virtual environment: packages, MiB, seconds; those of pip left out."""
    venv.create(folder, with_pip=True)
    before = size(folder)
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-cache-dir", what]
    began = time.monotonic()
    subprocess.run(command, check=True)
    took = time.monotonic() - began
    after = size(folder)
    return after[0] - before[0], (after[1] - before[1]) / 2**20, took


def main() -> None:
    """Print a table for each tree, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--extra", action="append", help="only these; '' is the core")
    given = parser.parse_args()
    for tree in given.trees:
        print(f"\n{tree}\n\n| `pip install` | packages | MiB | seconds |\n|---|---|---|---|")
        with tempfile.TemporaryDirectory() as held:
            (Path(held) / "wheel").mkdir()
            wheel = wheel_of(tree, Path(held) / "wheel")
            for extra in given.extra or extras_of(tree):
                runs = []
                for number in range(given.repeats):
                    runs.append(install(wheel, extra, Path(held) / f"{extra}-{number}"))
                seconds = sorted(run[2] for run in runs)
                name = f"'hwqueue[{extra}]'" if extra else "hwqueue"
                spread = f"{median(seconds):.1f} ({seconds[0]:.1f} to {seconds[-1]:.1f})"
                print(f"| `{name}` | {runs[0][0]} | {runs[0][1]:.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
