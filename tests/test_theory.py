"""Theorem 1's constants, computed by hand."""

from __future__ import annotations

import math

import pytest

from fedhyper import theorem1

CASE = {
    "global_bound": 3.0,
    "local_bound": 2.0,
    "variance": 0.5,
    "dissimilarity": 0.25,
    "clients_per_round": 4,
    "local_steps": 3,
    "rounds": 12,
}


def test_by_hand() -> None:
    result = theorem1(**CASE)
    # γ_β = 2: γ² = 4, γ⁴ = 16; M = 4, k = 3, T = 12
    # P = (16 · .5 + 1) · 3 = 27
    assert result.P == 27.0
    # noise = (2 · 16 + 1)² - 1/4 = 1088.75; drift = (2 · 4 + 1)² - ¼ · (2/4 + 1) = 81 - .375 = 80.625
    # Q = 4 · .5 · 1088.75 + 4 · .25 · 80.625 = 2177.5 + 80.625
    assert result.Q == 2258.125
    # P / √(4 · 3 · 12) + Q / (3 · 12) = 27 / 12 + 2258.125 / 36
    assert result.error == pytest.approx(2.25 + 2258.125 / 36, rel=1e-15)


def test_one_step_and_rates_held_still() -> None:
    result = theorem1(**CASE | {"global_bound": 1.0, "local_bound": 1.0, "local_steps": 1})
    # P = σ² + 1; noise = 1 - 1 = 0; drift = 1 - 1 = 0
    assert (result.P, result.Q) == (1.5, 0.0)
    assert result.error == pytest.approx(1.5 / math.sqrt(4 * 12))


@pytest.mark.parametrize("name", ["global_bound", "local_bound", "variance", "dissimilarity"])
def test_wider_bounds_and_noise_cost(name: str) -> None:
    errors = [theorem1(**CASE | {name: CASE[name] * factor}).error for factor in (1, 2, 4)]
    assert errors == sorted(errors)
    assert len(set(errors)) == 3


def test_more_rounds_help() -> None:
    errors = [theorem1(**CASE | {"rounds": rounds}).error for rounds in (1, 10, 100)]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("name", CASE)
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_bad_arguments_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be finite and at least [01], got "):
        theorem1(**CASE | {name: value})


@pytest.mark.parametrize("name", ["global_bound", "local_bound", "clients_per_round", "local_steps", "rounds"])
def test_what_counts_or_is_a_factor_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be finite and at least 1, got 0.5$"):
        theorem1(**CASE | {name: 0.5})
    assert math.isfinite(theorem1(**CASE | {name: 1}).error)


def test_clients_that_are_alike_and_free_of_noise_are_allowed() -> None:
    # σ² = ρ² = 0: P = γ_α, Q = 0
    assert theorem1(**CASE | {"variance": 0, "dissimilarity": 0})[:2] == (3.0, 0.0)
