"""Not a bit of any result moves by accident: the weights of every method are those of ``golden/hashes.json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.compare import differing
from tests.golden.take import machine, take

HASHES = Path(__file__).parent / "golden" / "hashes.json"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_method_ends_with_the_weights_on_file() -> None:
    if not HASHES.is_file():
        pytest.skip(f"there is no {HASHES.name}; python tests/golden/take.py {HASHES} makes it")
    before = json.loads(HASHES.read_text())
    if before["machine"] != machine():
        pytest.skip(f"the hashes are of {before['machine']}, this is {machine()}: other bits are no mistake")
    assert differing(before, take()) == []


def test_a_run_taken_twice_has_the_same_bits_and_another_seed_others() -> None:
    once, twice = take([["fedavg", "rounds=1"]]), take([["fedavg", "rounds=1"]])
    assert once["runs"]["fedavg rounds=1"]
    assert differing(once, twice) == []
    other = take([["fedavg", "rounds=1", "seed=5"]])
    assert set(other["runs"].values()) != set(once["runs"].values())


def test_differences_are_told_run_by_run() -> None:
    before = {"runs": {"a": "1f 2.0", "b": None, "c": "1f 2.0", "d": "1f 2.0", "e": "1f 2.0", "f": "1f 2.0"}}
    after = {"runs": {"a": "1f 2.0", "b": "1f 2.0", "c": None, "d": "2f 2.5", "e": "1f 2.5", "g": "1f 2.0"}}
    assert differing(before, after) == [
        "b: failed before, runs now",
        "c: ran before, fails now",
        "d: other weights; loss 2.0 -> 2.5",
        "e: the same weights, another mean of the last rounds; loss 2.0 -> 2.5",
        "f: only before",
        "g: only after",
    ]
