"""The page that a package index shows: the README, with links that lead somewhere from there.

hatchling calls `Page` when it builds. The address of the repository stands in pyproject.toml alone,
`[project.urls]`.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```$", re.M | re.S)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def page_of(readme: str, repository: str, version: str) -> str:
    """The README as an index shows it.

    Links go to the files of this version, as GitHub and hosts like it serve them. So does a link in
    the place of a diagram, which an index does not draw.
    """

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        return f"{mark}[{text}]({repository}/{'raw' if mark else 'blob'}/v{version}/{target})"

    return _LINK.sub(link, _DIAGRAM.sub("The diagram is drawn in the [README](README.md).", readme))


class Page(MetadataHookInterface):
    """Puts the page into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling, with the table `[project]`."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = page_of(readme, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
