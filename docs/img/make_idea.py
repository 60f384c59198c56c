"""Draws idea.svg: consecutive steps that agree (the rate grows) and that oppose (it shrinks).

Run it with ``python docs/img/make_idea.py``; it needs the standard library only.
"""

from __future__ import annotations

from pathlib import Path

INK, QUIET, GROW, SHRINK = "#1f2933", "#9aa5b1", "#1a7f4b", "#b3441e"
WIDTH, HEIGHT, PANEL = 760, 236, 380
SUB = "<tspan dy='3' font-size='11'>{}</tspan><tspan dy='-3'>{}</tspan>"
INNER = "⟨Δ" + SUB.format("t", ", Δ") + SUB.format("t−1", "⟩")


def arrow(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 3, dashed: bool = False) -> str:
    """A line with a head of its own color."""
    dash = ' stroke-dasharray="6 5"' if dashed else ""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="{width}"{dash} '
        f'marker-end="url(#head-{color[1:]})"/>'
    )


def text(x: float, y: float, words: str, color: str = INK, size: int = 15, weight: str = "normal") -> str:
    """Centered words."""
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}" font-weight="{weight}">{words}</text>'


def valley(left: float) -> str:
    """Contour lines of a loss, drawn as ellipses around its lowest point."""
    rings = [
        f'<ellipse cx="{left + 265}" cy="142" rx="{r}" ry="{r * 0.42:.0f}" fill="none" stroke="#d9dee4"/>'
        for r in (28, 56, 84, 104)
    ]
    return "".join(rings) + f'<circle cx="{left + 265}" cy="142" r="3.5" fill="{QUIET}"/>'


def panel(left: float, title: str, color: str, steps: list[tuple[int, int]], angle: str, verdict: str) -> str:
    """Three points, the step before (grey), the step now (colored), and what becomes of the rate."""
    (x0, y0), (x1, y1), (x2, y2) = [(left + x, y) for x, y in steps]
    return "".join(
        [
            valley(left),
            text(left + PANEL / 2, 28, title, color, 18, "bold"),
            text(left + PANEL / 2, 52, angle, INK, 15),
            arrow(x0, y0, x1, y1, QUIET),
            arrow(x1, y1, x2, y2, color, 4),
            *[f'<circle cx="{x}" cy="{y}" r="4" fill="{INK}"/>' for x, y in ((x0, y0), (x1, y1))],
            text((x0 + x1) / 2 + 40, (y0 + y1) / 2 - 14, "the step before", "#66707c", 13),
            text((x1 + x2) / 2, (y1 + y2) / 2 + (26 if x2 > x1 else 30), "the step now", color, 13),
            text(left + PANEL / 2, 222, verdict, color, 15, "bold"),
        ]
    )


def drawing() -> str:
    """The whole picture."""
    heads = "".join(
        f'<marker id="head-{color[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="5" markerHeight="5" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{color}"/></marker>'
        for color in (QUIET, GROW, SHRINK)
    )
    agree = [(40, 84), (105, 108), (190, 124)]
    oppose = [(70, 97), (345, 120), (120, 160)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" text-anchor="middle">'
        "<title>When consecutive steps agree the rate grows; when they oppose it shrinks</title>"
        f'<defs>{heads}</defs><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        f'<line x1="{PANEL}" y1="12" x2="{PANEL}" y2="{HEIGHT - 12}" stroke="#e4e7eb"/>'
        + panel(
            0,
            "They agree",
            GROW,
            agree,
            INNER + " &gt; 0",
            "far to go: the rate grows",
        )
        + panel(
            PANEL,
            "They oppose",
            SHRINK,
            oppose,
            INNER + " &lt; 0",
            "stepped over it: the rate shrinks",
        )
        + "</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("idea.svg").write_text(drawing(), encoding="utf-8")
