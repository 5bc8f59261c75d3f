"""README as a package index shows it: a build hook of hatchling.

An index knows none of our files, so links to them lead to the repository whose address pyproject.toml gives. Without
an address they are words alone.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")


class IndexReadme(MetadataHookInterface):
    """Sets the long description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` to README.md, its links changed."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"].get("Repository")
        to = rf"[\1]({repository}/blob/main/\2)" if repository else r"\1"
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(to, text)}
