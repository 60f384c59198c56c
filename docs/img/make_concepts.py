"""Draw round.svg, schedulers.svg and ladder.svg for docs/concepts.md: ``python docs/img/make_concepts.py``."""

from __future__ import annotations

from pathlib import Path

INK, BLUE, ORANGE, GREEN, PALE = "#1f2937", "#2563eb", "#c2410c", "#15803d", "#eef2ff"


def text(x: float, y: float, words: str, size: int = 15, anchor: str = "middle", fill: str = INK) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def box(x: float, y: float, w: float, h: float, words: list[str], stroke: str = INK) -> str:
    lines = [text(x + w / 2, y + h / 2 + 5 + 20 * (i - (len(words) - 1) / 2), line) for i, line in enumerate(words)]
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{PALE}" stroke="{stroke}"/>' + "".join(lines)


def arrow(x1: float, y1: float, x2: float, y2: float, color: str = INK, width: float = 2) -> str:
    name = {INK: "ink", BLUE: "blue", ORANGE: "orange", GREEN: "green"}[color]
    place = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {place} stroke="{color}" stroke-width="{width}" marker-end="url(#{name})"/>'


def svg(width: int, height: int, *parts: str) -> str:
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
        for name, color in (("ink", INK), ("blue", BLUE), ("orange", ORANGE), ("green", GREEN))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
        f'<defs>{heads}</defs><rect width="{width}" height="{height}" rx="10" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def the_round() -> str:
    server = box(30, 90, 200, 120, ["server", "α, the global rate", "w ← w − α · Δ"], BLUE)
    clients = [box(490, 20 + 90 * i, 200, 72, [f"client {i + 1}", "trains with β"], GREEN) for i in range(3)]
    down = [arrow(232, 125, 486, 46 + 90 * i, BLUE) for i in range(3)]
    up = [arrow(486, 72 + 90 * i, 234, 185, GREEN) for i in range(3)]
    words = text(330, 52, "weights w, local rate β", fill=BLUE) + text(
        330, 262, "updates Δ = before − after", fill=GREEN
    )
    return svg(720, 300, *down, *up, server, *clients, words)


def schedulers() -> str:
    parts = []
    cases = (
        ("agree: the rate grows", (70, 150, 150, 110), (150, 110, 235, 75), GREEN),
        ("at right angles: it stays", (310, 150, 395, 110), (395, 110, 360, 40), INK),
        ("turn back: it shrinks", (550, 150, 640, 100), (640, 92, 565, 132), ORANGE),
    )
    for words, before, now, color in cases:
        middle = before[0] + 80
        parts += [arrow(*before, BLUE, 3), arrow(*now, color, 3), text(middle, 205, words, fill=color)]
    parts.append(text(360, 28, "blue: the update before · the other: this one", 14))
    parts.append(text(360, 245, "rate ← rate + ⟨Δ now, Δ before⟩, within its bounds", 16))
    return svg(720, 265, *parts)


def ladder() -> str:
    rates = ["0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1"]
    votes = [0, 0, 0, 1, 5, 3, 1]
    parts = [text(360, 28, "votes of ten clients: with which rate did your loss fall most?", 15)]
    for i, (rate, count) in enumerate(zip(rates, votes, strict=True)):
        x = 75 + 90 * i
        parts += [f'<circle cx="{x + 20}" cy="{168 - 22 * k}" r="9" fill="{GREEN}"/>' for k in range(count)]
        parts += [f'<rect x="{x - 12}" y="184" width="64" height="5" fill="{INK}"/>', text(x + 20, 212, rate)]
    parts.append(text(360, 245, "one rung is a factor √10; the run begins where the votes are, on the low side", 15))
    parts.append(arrow(455, 50, 455, 66, BLUE))
    return svg(720, 262, *parts)


DRAWINGS = {"round.svg": the_round, "schedulers.svg": schedulers, "ladder.svg": ladder}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (Path(__file__).parent / name).write_text(draw(), encoding="utf-8")
