"""What may be believed: tables, trajectories, and properties over every float there is."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhyper import FedExP, FedHyperCL, FedHyperG, FedHyperSL, LRState
from fedhyper.guard import all_finite, bounded, clamp, fair_weights, not_against, reject_reason

NAN, INF = math.nan, math.inf
EVERY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=150)


# clamp ---------------------------------------------------------------------------------------------------------------

CLAMPED = [(0.5, 1.0), (1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (7.0, 2.0), (-7.0, 1.0), (NAN, 9.0), (INF, 9.0), (-INF, 9.0)]


@pytest.mark.parametrize(("value", "expected"), CLAMPED)
def test_clamp(value: float, expected: float) -> None:
    assert clamp(value, 1.0, 2.0, keep=9.0) == expected


@pytest.mark.parametrize("make", [np.array, lambda v: torch.tensor(v, dtype=torch.float64)], ids=["numpy", "torch"])
def test_clamp_of_an_array(make: Any) -> None:
    values, expected = zip(*CLAMPED, strict=True)
    assert clamp(make(values), 1.0, 2.0, keep=9.0).tolist() == list(expected)
    keep = make([float(i) for i in range(len(values))])
    assert clamp(make(values), 1.0, 2.0, keep=keep).tolist() == [*expected[:6], 6.0, 7.0, 8.0]


@given(EVERY_FLOAT, st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
@repeatable
def test_clamp_is_in_bounds_or_keeps(value: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    result = clamp(value, low, high, keep=low)
    assert low <= result <= high
    assert result == float(clamp(np.array([value]), low, high, keep=low)[0])


# Rates stay in their bounds, whatever is shown -----------------------------------------------------------------------

FINITE_SETTINGS = {
    "lr": st.floats(1e-6, 1e3),
    "bound": st.floats(1.0, 1e9),
    "bounds": st.sampled_from(["relative", "absolute"]),
    "hypergrad": st.sampled_from(["inner", "cosine"]),
    "apply": st.sampled_from(["add", "relative", "log"]),
    "hyper_lr": st.floats(1e-6, 1e6),
}
CL_SETTINGS = {
    "local_steps": st.integers(1, 1000),
    "global_term": st.sampled_from(["add", "sign", "off"]),
    "epsilon": st.floats(0.0, 1.0),
}
RULES = st.one_of(
    st.builds(FedHyperG, **FINITE_SETTINGS),
    st.builds(FedHyperSL, **FINITE_SETTINGS),
    st.builds(FedHyperCL, **FINITE_SETTINGS, **CL_SETTINGS),
)
VECTORS = st.lists(st.tuples(EVERY_FLOAT, EVERY_FLOAT), min_size=1, max_size=6)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero|underflow) encountered:RuntimeWarning")
@given(RULES, VECTORS, st.sampled_from([list, np.array, lambda v: torch.tensor(v, dtype=torch.float64)]))
@repeatable
def test_rates_are_always_in_bounds(rule: Any, vectors: list[tuple[float, float]], make: Any) -> None:
    low, high = rule.range
    state = rule.init()
    for vector, other in zip(vectors, reversed(vectors), strict=True):
        before = state
        state = rule.update(state, *[make(list(v)) for v in (vector, other)[: len(rule.requires)]])
        assert low <= state.lr <= high
        if not math.isfinite(state.hypergrad):
            assert state.lr == before.lr
            assert state.before is before.before
        if any(not math.isfinite(x) for x in vector):
            assert state.lr == before.lr


@given(st.lists(EVERY_FLOAT, min_size=1, max_size=4), EVERY_FLOAT)
@repeatable
def test_fedexp_is_at_least_one(delta: list[float], sq_norm: float) -> None:
    rate = FedExP().update(LRState(1.5), delta, sq_norm).lr
    assert 1.0 <= rate < INF


# Replies -------------------------------------------------------------------------------------------------------------

LIKE = np.zeros((2, 3), dtype=np.float32)
OK = np.ones((2, 3), dtype=np.float32)


def _with(value: float, position: tuple[int, int]) -> np.ndarray:
    delta = OK.copy()
    delta[position] = value
    return delta


@pytest.mark.parametrize(
    ("delta", "examples", "reason"),
    [
        (OK, 1, None),
        (OK, 0.5, None),
        (OK, 2**62, None),
        (OK * 3e38, 1, None),  # finite, although its square is not: long, and the norm cap's to deal with
        (OK, 0, "weight 0 is not finite and positive"),
        (OK, -10, "weight -10 is not finite and positive"),
        (OK, NAN, "weight nan is not finite and positive"),
        (OK, INF, "weight inf is not finite and positive"),
        (OK, 10**400, f"weight {10**400} is not finite and positive"),
        (OK, sys.float_info.max, None),  # the largest float there is, is one
        (OK, True, "weight is bool, not a number"),
        (OK, "7", "weight is str, not a number"),
        (OK, None, "weight is NoneType, not a number"),
        (np.ones(3, dtype=np.float32), 1, "shape (3,), expected (2, 3)"),  # would broadcast
        (np.ones((), dtype=np.float32), 1, "shape (), expected (2, 3)"),
        (np.ones((2, 4), dtype=np.float32), 1, "shape (2, 4), expected (2, 3)"),
        (_with(NAN, (0, 0)), 1, "non-finite"),
        (_with(INF, (1, 2)), 1, "non-finite"),
        (_with(-INF, (0, 1)), 1, "non-finite"),
    ],
)
def test_reject_reason(delta: np.ndarray, examples: object, reason: str | None) -> None:
    assert reject_reason(delta, LIKE, examples) == reason
    assert reject_reason(torch.from_numpy(delta), torch.from_numpy(LIKE), examples) == reason


def test_all_finite() -> None:
    assert all_finite(np.zeros(0))
    assert all_finite(torch.full((3,), 1e200, dtype=torch.float64))  # a sum of squares would refuse it
    assert not all_finite(np.array([INF, -INF]))  # a sum would be NaN, a maximum inf


# what clients may weigh ----------------------------------------------------------------------------------------------


def test_who_pulls_against_the_others_takes_back_a_fifth_of_their_way() -> None:
    # 2, 2 and -2 on a line: S = 2, the others' way is 4, its square 16, a fifth 3.2; against it the third makes 2 * 4
    assert not_against([1.0, 1.0, 1.0], [4.0, 4.0, 4.0], [4.0, 4.0, -4.0]) == pytest.approx([1.0, 1.0, 0.4])


def test_clients_that_send_zeros_do_not_make_the_others_strong() -> None:
    assert fair_weights([1.0] * 5, [0.0, 0.0, 0.0, 1.0, 100.0]) == [1.0] * 5  # of two that moved nobody is the odd one
    assert fair_weights([1.0] * 4, [1.0, 1.0, 1.0, 100.0]) == pytest.approx([1.0, 1.0, 1.0, 0.01])


def test_a_report_of_zero_is_a_report() -> None:
    assert bounded([0.0, 4.0, 4.0], 3.0) == [0.0, 4.0, 4.0]
    assert bounded([0.0, 0.0, 0.0, 9.0, 9.0], 3.0) == [0.0] * 5  # most say 0
    assert bounded([NAN, -1.0, INF, 4.0, 5.0], 3.0) == [4.0, 4.0, 4.0, 4.0, 5.0]  # what is no number: the median
