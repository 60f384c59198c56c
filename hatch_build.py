"""README and addresses of a release: links into the repository work on PyPI, too.

``FEDHYPER_REPOSITORY=https://host/owner/name python -m build`` makes every link and picture of README.md that leads
into the repository an absolute one, to the tag of the version. Without it the README stays as it is. See
docs/releasing.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")


def absolute(readme: str, repository: str, tag: str) -> str:
    """``readme`` with links into ``repository`` at ``tag`` in place of relative ones; code blocks are left alone."""

    def one(match: re.Match[str]) -> str:
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['text']}]({repository}/{kind}/{tag}/{match['target']})"

    parts = re.split(r"(^```.*?^```)", readme, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _LINK.sub(one, part) for part in parts)


class CustomMetadataHook(MetadataHookInterface):
    """Fills in what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``readme`` and ``urls``."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        urls = {"Paper": "https://arxiv.org/abs/2310.03156"}
        repository = os.environ.get("FEDHYPER_REPOSITORY", "").rstrip("/")
        if repository:
            source = Path(self.root, "src", "fedhyper", "__init__.py").read_text(encoding="utf-8")
            found = re.search(r'^__version__ = "(.+)"', source, flags=re.M)
            tag = f"v{found[1]}" if found else "main"
            text = absolute(text, repository, tag)
            urls |= {
                "Repository": repository,
                "Documentation": f"{repository}/tree/{tag}/docs",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls
