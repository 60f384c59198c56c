"""Which runs have other weights than before: ``python tests/golden/compare.py BEFORE AFTER``; exit code 1 if any."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for every run that is not the same in both files: other weights, another mean, failed, new, or gone."""
    lines = []
    for name in sorted({*before["runs"], *after["runs"]}):
        old, new = before["runs"].get(name, "absent"), after["runs"].get(name, "absent")
        if old != new:
            lines.append(f"{name}: {_said(old, new)}")
    return lines


def _said(old: str | None, new: str | None) -> str:
    if "absent" in (old, new):
        return "only after" if old == "absent" else "only before"
    if old is None or new is None:
        return "failed before, runs now" if old is None else "ran before, fails now"
    (weights, loss), (new_weights, new_loss) = old.split(), new.split()
    what = "the same weights, another mean of the last rounds" if weights == new_weights else "other weights"
    return f"{what}; loss {loss} -> {new_loss}"


def main() -> int:
    """Print them, and how many there are."""
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/golden/compare.py BEFORE AFTER")
    before, after = (json.loads(Path(path).read_text()) for path in sys.argv[1:])
    if before["machine"] != after["machine"]:
        sys.exit(f"not comparable: {before['machine']} and {after['machine']}; bits hold for one machine and one torch")
    lines = differing(before, after)
    print(*lines, sep="\n")
    print(f"{len(lines)} of {len(after['runs'])} runs differ")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
