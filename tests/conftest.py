"""The promises of docs/reliability.md, each with the cases that this run tried it on: printed when the tests are done.

A row of that table names its tests by the command that runs them, and nothing else does: what counts is what is
printed there. A test counts once, or as often as it says to the fixture ``tried``; one that fails counts for nothing.
``-m promise`` selects them all. Counts travel in the tests' reports, so that processes of xdist add up.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# Processes of xdist that have a thread a core each wait for one another in every small product: on two cores
# test_flower_hostile.py took more than 8 minutes with -n 2, 41 s without, and 24 s with this. Before torch is imported
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
ROW = re.compile(r"^\| *(\w+) *\| *(.*?) *\| *`(pytest [^`]*)` *\|", re.M)


class Promise(NamedTuple):
    """One row: what it is about, what is promised, and the command that shows it."""

    about: str
    says: str
    command: str

    def covers(self, test: str) -> bool:
        """Whether the command runs this test."""
        words = shlex.split(self.command)[1:]
        some = words[words.index("-k") + 1].split(" or ") if "-k" in words else [""]
        file, _, name = test.partition("::")
        return file in words and any(word.lower() in name.lower() for word in some)


def promises() -> list[Promise]:
    """The rows of the page that a test shows; the others name a make target."""
    return [Promise(*row) for row in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise: shows a promise of docs/reliability.md; nobody writes it")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rows = promises()
    for item in items:
        if any(row.covers(item.nodeid) for row in rows):
            item.add_marker("promise")


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """``tried(n)``: this test stands for n cases."""
    return lambda cases: request.node.user_properties.append(("tried", cases))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = {
        outcome: [report for report in terminalreporter.stats.get(outcome, []) if hasattr(report, "user_properties")]
        for outcome in ("passed", "failed", "error", "skipped")
    }
    lines = []
    for row in promises():
        held, broken, skipped = (
            sum(_cases(report) for outcome in some for report in reports[outcome] if row.covers(report.nodeid))
            for some in (("passed",), ("failed", "error"), ("skipped",))
        )
        if held or broken or skipped:
            left = f" ({skipped} skipped)" if skipped else ""
            lines.append(f"{row.about:<8} {held:>6} of {held + broken:<6}{row.says}{left}: {row.command}")
    if lines:
        terminalreporter.section("promises: cases that held, of those tried in this run")
        terminalreporter.write("\n".join(lines) + "\n")


def _cases(report: Any) -> int:
    return sum(value for name, value in report.user_properties if name == "tried") or 1
