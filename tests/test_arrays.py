"""The inner product: exact, the same for any number of threads, and refusing what does not fit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fedhyper.arrays import cosine, inner


def _exact(a: np.ndarray, b: np.ndarray) -> float:
    return float(sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("size", [1, 2, 16_383, 16_384, 16_385, 40_001])
def test_inner_against_exact_fractions(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.normal(size=(2, size)).astype(np.float32)
    exact, scale = _exact(a, b), math.fsum(np.abs(a.astype(float) * b).tolist())
    for result in (inner(a, b), inner(torch.tensor(a), torch.tensor(b)), inner([a], [b])):
        assert abs(float(result) - exact) <= 1e-15 * scale
    assert inner(a.tolist(), b.tolist()) == exact  # fsum of exact products (float32 squared fits in float64)


@pytest.mark.parametrize("shape", [(5,), (100_003,), (1_000_000,), (3, 100_003)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_inner_has_the_same_bits_for_any_number_of_threads(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    before, results, arrays = torch.get_num_threads(), set(), set()
    try:
        for threads in (1, 2, 3, 4, 8):
            torch.set_num_threads(threads)
            results.add(inner(a, b).numpy().tobytes())
            with threadpool_limits(threads):
                arrays.add(np.asarray(inner(a.float().numpy(), b.float().numpy())).tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(results) == 1
    assert len(arrays) == 1


def test_a_number_stands_for_an_array_full_of_it() -> None:
    for vector in ([1.0, 2.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])):
        assert float(inner(vector, 3.0)) == 9.0
        assert math.isnan(
            float(inner(type(vector)([1.0, math.nan]) if isinstance(vector, list) else vector * math.nan, 0))
        )
    assert inner(2.0, 3) == 6.0
    assert inner(np.float32(2.0), np.float32(3.0)) == 6.0
    assert inner(torch.tensor(2.0), 3.0) == 6.0


def test_sums_beyond_float64_are_no_numbers_to_act_on() -> None:
    assert math.isnan(inner([1e308, 1e308], [1.0, 1.0]))
    assert math.isnan(inner([math.inf, -math.inf], [1.0, 1.0]))


def test_cosine_of_known_angles() -> None:
    assert cosine([3.0, 4.0], [6.0, 8.0]) == pytest.approx(1.0)
    assert cosine([3.0, 4.0], [-3.0, -4.0]) == pytest.approx(-1.0)
    assert cosine([1.0, 0.0], [0.0, 5.0]) == 0.0
    assert cosine([1.0, 0.0], [1.0, 1.0]) == pytest.approx(math.sqrt(0.5))
    assert cosine([0.0, 0.0], [1.0, 1.0]) == 0.0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 2.0], [1.0]),
        ([1.0, 2.0], np.ones(3)),
        (np.ones(3), np.ones((2, 3))),
        (torch.ones(1), torch.ones(3)),
        ([torch.ones(2, 3)], [torch.ones(3, 2)]),
        (1.0, np.ones(2)),
    ],
)
def test_vectors_that_do_not_fit_are_refused(a: object, b: object) -> None:
    with pytest.raises(ValueError, match=r"^the two vectors have shapes \(.*\) and \(.*\); they must match$"):
        inner(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_neither_overflows_nor_vanishes(dtype: torch.dtype) -> None:
    huge, tiny = torch.full((9,), 300.0, dtype=dtype), torch.full((9,), 2.0**-20, dtype=dtype)
    assert float(inner(huge, huge)) == 9 * float(huge[0]) ** 2  # beyond float16 already once
    assert float(inner(tiny, tiny)) == 9 * 2.0**-40
