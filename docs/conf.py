"""The site of the documentation: `make docs` builds it into docs/_build.

The pages are written for a plain git host, too. So links go to files of the repository, and this
file turns those that leave docs/ into links to pages of the site.
"""

import posixpath
import re
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "hwqueue"
project_copyright = "the hwqueue authors, Apache-2.0"
release = installed_version("hwqueue")
version = release

extensions = ["myst_parser", "sphinx_llms_txt"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hwqueue {release}"
html_show_sourcelink = False
highlight_language = "none"
# llms.txt: the pages, for programs that read them
llms_txt_summary = "A task queue inside Postgres that knows which machine may run what."
myst_heading_anchors = 4

# Files of the repository that are pages of the site: page, file.
REPOSITORY_PAGES = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "development/sql": "sql/README.md",
}
_PAGE_OF_FILE = {file: f"docs/{page}.md" for page, file in REPOSITORY_PAGES.items()} | {
    "README.md": "docs/index.md"
}
# Pages for people with a checkout, which the site does not have: it names them.
_OF_A_CHECKOUT = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)*((?:hwqueue|lab|tests|benchmarks)/[\w/]+\.md)(?:#[^)\s]*)?\)"
)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def with_links_of_the_site(text: str, source: str, page: str) -> str:
    """The text of a file of the repository, with its links as seen from a page of the site."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        target = _PAGE_OF_FILE.get(target, target)
        here = posixpath.relpath(target, posixpath.dirname(f"docs/{page}.md"))
        return f"]({here}{found[2] or ''})"

    return _LINK.sub(link, _OF_A_CHECKOUT.sub(r"\1 (`\2`)", text))


def read_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the repository's file in the place of its stand-in, and mend the links of each page."""
    source = REPOSITORY_PAGES.get(page)
    if source is not None:
        app.env.note_dependency(ROOT / source)
        content[0] = (ROOT / source).read_text(encoding="utf-8")
    content[0] = with_links_of_the_site(content[0], source or f"docs/{page}.md", page)
    if page == "index":  # the README, and the lists of pages
        app.env.note_dependency(ROOT / "README.md")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        # a picture on GitHub; here the lines that it is drawn from, which need no script
        readme = readme.replace("```mermaid\nstateDiagram-v2\n", "```text\n")
        lists = content[0][content[0].index("## Start") :]
        content[0] = with_links_of_the_site(readme, "README.md", page) + "\n" + lists


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", read_source)
