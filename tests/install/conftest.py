"""The matrix of ``make test-install``, printed when the run ends, however it ends."""

from __future__ import annotations

from typing import Any

import pytest

Cell = tuple[str, str, str]  # Python, constraints, extra
MATRIX = pytest.StashKey[dict[Cell, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MATRIX] = {}


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> dict[Cell, str]:
    """What every cell came to."""
    return pytestconfig.stash[MATRIX]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    cells = config.stash.get(MATRIX, {})
    if cells:
        terminalreporter.section("what was installed where, and what ran")
        terminalreporter.line("python  constraints  extra        result")
        for (python, constrained, extra), result in cells.items():
            terminalreporter.line(f"{python:<7} {constrained:<12} {extra or '(none)':<12} {result}")
