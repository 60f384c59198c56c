"""Every row of what was found on commit ef922d3 holds today; tests/found.py says how to see it fail there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), found.ROWS, ids=[name for name, _ in found.ROWS])
def test_what_was_found_once_holds(name: str, row: Callable[[Path], tuple[bool, str]], tmp_path: Path) -> None:
    held, seen = row(tmp_path)
    assert held, f"{name}: {seen}"


def test_a_row_can_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(_: Path) -> tuple[bool, str]:
        raise ValueError("boom")

    rows = [("a: one", lambda _: (True, "so")), ("a: two", lambda _: (False, "not so")), ("b: three", raises)]
    monkeypatch.setattr(found, "ROWS", rows)
    assert found.main([]) == 2
    assert found.main(["one"]) == 0
    assert "FAILS  b: three" in capsys.readouterr().out
