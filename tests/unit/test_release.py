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
    assert "stateDiagram" not in page


def test_all_pages_name_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "docs" / "run").glob("*.md")]
    named = re.compile(r"(?<![\d.])0\.\d+\.\d+(?:(?:a|b|rc)\d+)?(?![\d.]*\d)")
    found = {(page.name, each) for page in pages for each in named.findall(page.read_text(encoding="utf-8"))}
    assert {version for _, version in found} == {PROJECT["version"]}, found


def test_the_installed_package_says_so() -> None:
    """`make setup` builds the metadata as a release does."""
    said = metadata("hwqueue")
    assert said["Version"] == PROJECT["version"]
    assert "Repository, " + PROJECT["urls"]["Repository"] in said.get_all("Project-URL", [])
    assert "](docs/" not in str(said.json["description"])


def test_the_upload_waits_for_the_owner_and_for_what_is_not_committed() -> None:
    how = runpy.run_path(str(ROOT / "tools" / "release.py"))["how_to_upload"]
    theirs = {
        "version": "1.2",
        "maintainers": [{"name": "Ada"}],
        "urls": {"Repository": "https://git.example/q"},
    }
    assert "git push origin v1.2" in how(theirs, "")
    assert how(theirs, " M README.md\n").endswith("not committed\n M README.md\n")
    for unnamed in (
        {"maintainers": [{"name": "OWNER"}]},
        {"urls": {"Issues": "https://git.example/OWNER/q"}},
    ):
        assert how(theirs | unnamed, "").startswith("not to be uploaded: maintainers and urls")
