"""The site: ``make docs`` builds these pages into ``build/site``. The API is a page that ``make_api.py`` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "fedhyper" / "__init__.py").read_text())

project = "fedhyper"
release = VERSION[1] if VERSION else ""
copyright = "the fedhyper maintainers, Apache-2.0"  # Sphinx's name
extensions = ["myst_parser"]
exclude_patterns = ["img"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"fedhyper {release}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

_OUTSIDE = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<path>(?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
_PAGES = (".md", ".svg", ".png")


def _inside(app: Any, name: str, source: list[str]) -> None:
    """A link to a file of the repository that is no page becomes its path: a site has no source tree."""
    here = (Path(app.srcdir) / name).parent

    def plain(match: re.Match[str]) -> str:
        target = (here / match["path"]).resolve()
        if target.is_relative_to(app.srcdir) and (target.suffix in _PAGES or not target.exists()):
            return match[0]
        path = str(target.relative_to(ROOT))
        return f"`{path}`" if match["text"].strip("`") in path else f"{match['text']} (`{path}`)"

    source[0] = _OUTSIDE.sub(plain, source[0])


def setup(app: Any) -> None:
    """Sphinx calls this."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)  # shown as text: drawing it would fetch a script from elsewhere
    app.connect("source-read", _inside)
