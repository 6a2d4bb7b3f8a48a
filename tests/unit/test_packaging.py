"""The wheel carries what the package needs, and works away from the checkout."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hwqueue.schema.files import MIGRATIONS_DIR, SQL_DIR

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the Dockerfile copies for it."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    stage = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1]
    for line in re.findall(r"^COPY (.+)$", stage, re.M):
        *names, target = line.split()
        for path in map(ROOT.__truediv__, names):
            into = source / target
            if path.is_dir():
                shutil.copytree(path, into)
            else:
                into.mkdir(exist_ok=True)
                shutil.copy(path, into)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-q", "-w", str(folder), str(source)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_every_sql_file_and_migration_is_in_it(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for folder in (SQL_DIR, MIGRATIONS_DIR):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(folder.parent).as_posix()
                assert f"hwqueue/_data/{name}" in packed
    for folder in (ROOT / "hwqueue/dashboard/static", ROOT / "hwqueue/dashboard/templates"):
        for path in folder.rglob("*.*"):
            assert path.relative_to(ROOT).as_posix() in packed
    assert "hwqueue/contrib/django/migrations/0001_schema.py" in packed
    assert "hwqueue/contrib/django/templates/admin/hwqueue/lease/change_list.html" in packed
    assert {"hwqueue/py.typed", "hwqueue/meanings.toml"} <= packed
    assert "hwqueue/schema/sql/catalog.sql" in packed


def test_nothing_else_is_in_it(wheel: Path) -> None:
    """The laboratory, benchmarks and tests stay in the checkout."""
    packed = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in packed}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hwqueue", "pytest_hwqueue.py"}
    assert not [name for name in packed if name.startswith(("hwqueue/replay", "hwqueue/lab"))]
    assert "hwqueue/README.md" not in packed
    assert "hwqueue/demo/run.py" in packed


def test_the_installed_wheel_prints_the_same_script(wheel: Path, tmp_path: Path) -> None:
    """Unpacked first on the path, so that the checkout's own package is not the one imported."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import hwqueue; from hwqueue.schema import install_script;"
        "print(hwqueue.__file__); print(install_script())"
    )
    run = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n", 1)
        for folder in (tmp_path, ROOT)
    ]
    (packed_at, packed_script), (_, script) = run
    assert packed_at.startswith(str(tmp_path))
    assert packed_script == script
