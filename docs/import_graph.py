"""Draw which part of the package imports which, from the source: ``python docs/import_graph.py [--edges] [FILE]``.

Prints the picture (Mermaid, which GitHub shows), or writes it between the two marks in FILE; ``--edges`` prints one
line an edge, ``from layer -> to layer``, for a program. The layers are those of ``tests/test_layering.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import test_layering as house

BEGIN, END = "<!-- import graph: begin -->", "<!-- import graph: end -->"


class Edge(NamedTuple):
    """``here``, on layer ``high``, imports ``there``, on layer ``low``."""

    here: str
    high: int
    there: str
    low: int


def edges() -> list[Edge]:
    """Every import between two parts. The package's ``__init__``, which only gathers names, is left out."""
    found = set()
    for path in house.FILES:
        for name in house.imports(path):
            parts = name.split(".")
            here, there = house.unit(path), parts[1] if len(parts) > 1 else ""
            if parts[0] == "fedhyper" and there in house.LAYERS and here != there and "__init__" not in (here, there):
                found.add(Edge(here, house.LAYERS[here], there, house.LAYERS[there]))
    return sorted(found)


def needed(found: list[Edge]) -> list[Edge]:
    """Those that say something new: a part that is reached through another one as well needs no line of its own."""
    below: dict[str, set[str]] = {}
    for edge in found:
        below.setdefault(edge.here, set()).add(edge.there)

    def reached(start: str, without: str) -> set[str]:
        seen: set[str] = set()
        stack = [other for other in below.get(start, ()) if other != without]
        while stack:
            part = stack.pop()
            if part not in seen:
                seen.add(part)
                stack += below.get(part, ())
        return seen

    return [edge for edge in found if edge.there not in reached(edge.here, edge.there)]


def picture(found: list[Edge]) -> str:
    """The graph in Mermaid: a box for each layer, the highest on top."""
    lines = ["```mermaid", "graph TD"]
    for layer in sorted(set(house.LAYERS.values()), reverse=True):
        parts = sorted(name for name, its in house.LAYERS.items() if its == layer and name != "__init__")
        parts = [name for name in parts if any(name in (edge.here, edge.there) for edge in found)]
        lines += [f'  subgraph L{layer}["layer {layer}"]', *(f"    {name}" for name in parts), "  end"]
    lines += [f"  {edge.here} --> {edge.there}" for edge in needed(found)]
    return "\n".join([*lines, "```"])


def main() -> None:
    """The command line."""
    found = edges()
    if "--edges" in sys.argv:
        print(*(f"{e.here} {e.high} -> {e.there} {e.low}" for e in found), sep="\n")
        return
    if len(sys.argv) == 1:
        print(picture(found))
        return
    path = Path(sys.argv[1])
    before, _, rest = path.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"{path} lacks the marks {BEGIN} and {END}; put them where the picture belongs")
    path.write_text(f"{before}{BEGIN}\n{picture(found)}\n{END}{after}")


if __name__ == "__main__":
    main()
