"""Who holds what, as text: how large the clients are and which classes they have."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from fedhyper.lab.config.model import Config
from fedhyper.lab.running.words import BARS

SHOWN = 20  # clients in the table; the picture has them all


def print_partition(config: Config, record: dict[str, Any]) -> None:
    """Sizes of all clients in a line, then the first ones with a bar a class."""
    sizes: list[int] = record["sizes"]
    counts: list[list[int]] | None = record.get("class_counts")
    how = (
        f"dirichlet, concentration {config.partition.concentration:g}"
        if record["kind"] == "dirichlet"
        else record["kind"]
    )
    print(f"{config.task}: {sum(sizes):,} examples, {record['clients']:,} clients, {how}, seed {config.seed}")
    print(f"examples a client: {min(sizes):,} to {max(sizes):,}, median {median(sizes):,.0f}")
    if counts is not None:
        held = [sum(1 for n in row if n) for row in counts]
        print(f"classes a client: {min(held)} to {max(held)} of {len(counts[0])}, median {median(held):.0f}")
    print(f"sha256 {record['sha256']}")
    print(f"\nclient  examples  {'share of each class' if counts is not None else ''}".rstrip())
    for client, size in enumerate(sizes[:SHOWN]):
        row = "" if counts is None else _bars(counts[client], size)
        print(f"{client:>6}  {size:>8,}  {row}".rstrip())
    if len(sizes) > SHOWN:
        print(f"... and {len(sizes) - SHOWN:,} more; --figure FILE draws them all")


def _bars(row: list[int], size: int) -> str:
    """A bar a class, full height for a client that has nothing else; digits where the terminal has no blocks."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    steps = BARS if unicode else "12345678"
    return "".join(steps[min(7, 8 * n // max(1, size))] if n else "." if not unicode else "·" for n in row)
