"""The site of the documentation, as `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = [pytest.mark.embedded, pytest.mark.thorough]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = ["-q", "-W", "-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    subprocess.run([sys.executable, "-m", "sphinx", *built], check=True)
    return folder / "html"


def test_llms_txt_leads_to_the_text_of_every_page(site: Path) -> None:
    links = dict(re.findall(r"^- \[(.+)\]\((.+)\)$", (site / "llms.txt").read_text(), re.M))
    pages = {
        f"_sources/{page}.txt"
        for page in (file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md"))
        if not page.startswith("_")
    }
    assert set(links.values()) == pages  # two pages of one title would be one here
    texts = {link: (site / link).read_text() for link in pages}
    assert [link for link, text in texts.items() if "is shown here" in text] == []
    assert "## Is it for you?" in (site / "llms-full.txt").read_text()


def test_the_first_page_has_doors_and_a_picture_for_each_scheme(site: Path) -> None:
    page = (site / "index.html").read_text()
    [doors] = re.findall(r'<ul class="doors[^"]*">(.*?)</ul>', page, re.S)
    led = re.findall(r'<strong><a [^>]*href="([^"#]+)', doors)
    assert len(led) == 4
    assert [link for link in led if not (site / link).exists()] == []
    for scheme in ("light", "dark"):
        [picture] = re.findall(rf'<img [^>]*class="only-{scheme}"[^>]*>', page)
        [source] = re.findall(r'src="([^"]+)"', picture)
        assert scheme in source
        assert (site / source).exists()
