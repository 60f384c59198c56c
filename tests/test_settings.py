"""A setting says what it is once; what it refuses and how it says so follow from that."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import pytest

from fedhyper.averages import LastRounds
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.client.constants import DeltaConstants, PolyakConstants, ProximalConstants
from fedhyper.optimizers import Adagrad, Adam, Momentum, Yogi
from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL
from fedhyper.settings import Setting, check_settings, setting, settings_of

RULES = [
    *(FedHyperG, FedHyperSL, FedHyperCL, Constant, Decay, FedExP, Momentum, Adagrad, Adam, Yogi),
    *(DeltaConstants, PolyakConstants, ProximalConstants, LastRounds),
]


@pytest.mark.parametrize("rule", RULES)
def test_every_setting_of_a_rule_explains_itself(rule: type) -> None:
    says = settings_of(rule)
    for one in fields(rule):
        if one.name != "local_steps":  # a count of the round, not something to choose
            assert len(says[one.name].help) > 3, one.name
            assert says[one.name].accepts(one.default), one.name


@pytest.mark.parametrize(
    ("limits", "allowed", "good", "bad"),
    [
        ({"above": 0}, "a finite number above 0", [1, 1e-9], [0, -1.0]),
        ({"low": 1}, "at least 1", [1, 5.5], [0.9]),
        ({"high": 3}, "at most 3", [3, -9], [3.1]),
        ({"below": 3}, "a finite number below 3", [2.9], [3]),
        ({"low": 0, "below": 1}, "in [0, 1)", [0, 0.99], [1, -0.1]),
        ({"above": 0, "high": 1}, "in (0, 1]", [1, 0.1], [0, 1.1]),
        ({}, "a finite number", [0, -7.5], []),
        ({"kind": int, "low": 1}, "a whole number, at least 1", [1, 7], [1.0, 0]),
        ({"kind": int}, "a whole number", [-3], [2.5]),
    ],
)
def test_ranges(limits: dict[str, Any], allowed: str, good: list[float], bad: list[float]) -> None:
    one = Setting(help="", **limits)
    assert one.allowed == allowed
    assert all(one.accepts(value) for value in good)
    for value in [*bad, math.nan, math.inf, -math.inf, 10**400, "1", None, True, [1]]:
        assert not one.accepts(value), value


def test_words_and_truth_values() -> None:
    word = Setting(help="", choices=("a", "b"), kind=str)
    assert (word.allowed, word.accepts("a"), word.accepts("c"), word.accepts(1)) == ("one of a, b", True, False, False)
    truth, name = Setting(help="", kind=bool), Setting(help="", kind=str)
    assert (truth.allowed, truth.accepts(False), truth.accepts(0)) == ("true or false", True, False)
    assert (name.allowed, name.accepts("x"), name.accepts(1)) == ("a word", True, False)


@dataclass(frozen=True)
class Parent:
    size: float = setting(2.0, "how large", unit="a factor", low=1, cure="use 1 to leave it")
    count: int = setting(3, "how many", low=0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Child(Parent):
    size: float = 5.0


def test_a_subclass_keeps_what_its_parent_says() -> None:
    assert Child().size == 5.0
    assert settings_of(Child) == settings_of(Parent)
    for kind in (Parent, Child):
        with pytest.raises(ValueError, match=r"^size is a factor and must be at least 1, got 0\.5; use 1 to leave it$"):
            kind(size=0.5)
        with pytest.raises(ValueError, match=r"^count must be a whole number, at least 0, got 1\.5$"):
            kind(count=1.5)  # type: ignore[arg-type]
