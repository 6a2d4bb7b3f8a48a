"""What a package index shows of the project."""

import re
import runpy
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from readme_renderer.markdown import render

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

pytestmark = pytest.mark.embedded


def test_the_page_has_links_that_lead_somewhere() -> None:
    """From an index, where the files of the repository are not; and each to a file that is there."""
    repository = PROJECT["urls"]["Repository"]
    page_of = runpy.run_path(str(ROOT / "tools" / "metadata.py"))["page_of"]
    page = page_of((ROOT / "README.md").read_text(encoding="utf-8"), repository, PROJECT["version"])
    shown = render(page)
    assert shown is not None
    targets = re.findall(r'(?:href|src)="([^"]+)"', shown)
    assert [each for each in targets if not re.match(r"\w+:|#", each)] == []
    own = re.compile(rf"{re.escape(repository)}/(blob|raw)/v{re.escape(PROJECT['version'])}/([^#]+)")
    found = [match for each in targets if (match := own.match(each))]
    assert len(found) > 30
    assert [match[2] for match in found if not (ROOT / match[2]).exists()] == []
    assert all(match[2].endswith(".png") == (match[1] == "raw") for match in found)
    assert "mermaid" not in page


def test_the_installed_package_says_so() -> None:
    """`make setup` builds the metadata as a release does."""
    said = metadata("hwqueue")
    assert said["Version"] == PROJECT["version"]
    assert "Repository, " + PROJECT["urls"]["Repository"] in said.get_all("Project-URL", [])
    assert "](docs/" not in str(said.json["description"])
