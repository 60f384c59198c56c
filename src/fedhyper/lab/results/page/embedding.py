"""What the page carries with it: the data of its charts, its scripts and styles, and their hashes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhyper.lab.results.charts.chart import Rows
    from fedhyper.lab.results.figures.figure import Figure


def page_data(drawn: Sequence[Figure]) -> dict[str, Any]:
    """Specifications without their data, and the data once, however many charts draw it."""
    from fedhyper.lab.results.charts.chart import theme

    tables: list[Rows] = []
    charts = []
    for figure in drawn:
        names = {}
        for name, rows in figure.chart.data.items():
            known = next((i for i, table in enumerate(tables) if table is rows), len(tables))
            names[name] = known
            tables += [rows] if known == len(tables) else []
        spec = figure.chart.marks.to_dict(validate=False) | {"description": figure.alt}
        charts.append({"spec": spec, "data": names, "series": figure.by_series, "part": figure.part})
    data = [_columns(rows) for rows in tables]
    return {"charts": charts, "data": data, "themes": [theme(), theme(dark=True)]}


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {"length": len(rows), "columns": {name: [row.get(name) for row in rows] for name in names}}


def embedded(value: object) -> str:
    """JSON that cannot end the script element it stands in, nor be read as markup by anything."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 is \\u2028 already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def bundle() -> str:
    """Vega with everything it needs, as one script."""
    import vl_convert

    # A browser hashes what it parsed, so nothing may be in it that the parser changes or that ends the element.
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def asset(name: str) -> str:
    """The text of a file that lies beside this one: ``page.js`` or ``page.css``."""
    return files("fedhyper.lab.results").joinpath("page", name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """How a content security policy names a script or a style that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
