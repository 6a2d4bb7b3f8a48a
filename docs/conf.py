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
myst_enable_extensions = ["attrs_block", "attrs_inline"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hwqueue {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"
# llms.txt: the pages, for programs that read them
llms_txt_summary = "A task queue inside Postgres that knows which machine may run what."
llms_txt_uri_template = "_sources/{docname}{suffix}{sourcelink_suffix}"
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
_LIGHT_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*-)light(-[^)\s]*)\)")


def with_links_of_the_site(text: str, source: str, page: str) -> str:
    """The text of a file of the repository, with its links as seen from a page of the site."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        target = _PAGE_OF_FILE.get(target, target)
        here = posixpath.relpath(target, posixpath.dirname(f"docs/{page}.md"))
        return f"]({here}{found[2] or ''})"

    return _LINK.sub(link, _OF_A_CHECKOUT.sub(r"\1 (`\2`)", text))


def text_of(page: str, text: str) -> str:
    """What a page of the site says: the file of the repository in the place of its stand-in."""
    source = REPOSITORY_PAGES.get(page)
    if source is not None:
        text = (ROOT / source).read_text(encoding="utf-8")
    text = with_links_of_the_site(text, source or f"docs/{page}.md", page)
    if page == "reference/cli":
        return text.replace("# `hwqueue`", "# Command line: `hwqueue`", 1)
    if page != "index":
        return text
    # the README, and the lists of pages
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # a picture on GitHub; here the lines that it is drawn from, which need no script
    readme = readme.replace("```mermaid\nstateDiagram-v2\n", "```text\n")
    return f"{with_links_of_the_site(readme, 'README.md', page)}\n{text[text.index('## Start') :]}"


def read_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Sphinx calls this with the text of each page, to be changed in place."""
    for file in [REPOSITORY_PAGES.get(page), "README.md" if page == "index" else None]:
        if file is not None:
            app.env.note_dependency(ROOT / file)
    text = text_of(page, content[0]).replace("<!-- doors -->\n", "{.doors}\n")

    def both(found: re.Match[str]) -> str:
        dark = f"{found[2]}dark{found[3]}"
        if not (ROOT / "docs" / posixpath.dirname(page) / dark).exists():
            return found[0]
        return f"{found[0]}{{.only-light}}\n![{found[1]}]({dark}){{.only-dark}}"

    content[0] = _LIGHT_PICTURE.sub(both, text)


def write_sources(app: Sphinx, exception: Exception | None) -> None:
    """Put the whole text in the place of the stand-ins that llms.txt leads to."""
    for page in (*REPOSITORY_PAGES, "index") if exception is None else ():
        copied = Path(app.outdir) / "_sources" / f"{page}.md.txt"
        if copied.exists():
            stand_in = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
            copied.write_text(text_of(page, stand_in), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", read_source)
    app.connect("build-finished", write_sources, priority=100)  # llms-full.txt is made of them
