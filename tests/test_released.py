"""The authors' released client rule: worked by hand, fast = slow over several epochs, NaN does not raise the rate."""

from __future__ import annotations

import math

import pytest
import torch

from fedhyper.sim.local.step import Start, make_step
from fedhyper.sim.methods import Local
from tests.sim_support import make_simulation, run


def rates_of(grads: list[float], *, epoch_steps: int, delta: float, cohort: int, lr: float = 1.0) -> list[float]:
    """The rates with which one weight is stepped along these gradients, then the rate that would come next."""
    weights = torch.zeros(1)
    local = Local(kind="released", needs_delta=True)
    step = make_step(local, weights, Start(lr, len(grads), epoch_steps, torch.tensor([delta]), cohort))
    for grad in grads:
        step.step(torch.tensor([grad]), 0.0)
    return [*step.rates(), float(step.lr)]


def test_by_hand() -> None:
    # one epoch of 4 steps, Δ = 0.5, M = 5, β = 1
    # k=0 first of the epoch: nothing.                                  r = 1
    # k=1 d = 0.2: <d, Δ> stands for the step before: 0.1, + 0.1/5·0.1  r = min(1.1, 1.102) = 1.1
    # k=2 d = 1.1·(-0.5) = -0.55: <d, 0.2> = -0.11, + 0.02·(-0.275)     r = 1.1·(1 - 0.1155) = 0.97295
    # k=3 d = 0.97295·(-2) = -1.9459: <d, -0.55> = 1.070245, capped     r = 1.070245
    found = rates_of([1.0, 0.2, -0.5, -2.0], epoch_steps=4, delta=0.5, cohort=5)
    assert found == pytest.approx([1.0, 1.0, 1.1, 0.97295, 0.97295 * 1.1], rel=1e-6)


def test_the_first_step_of_every_epoch_is_skipped() -> None:
    # two epochs of 2: only k=1 and k=3 count, and k=3 is compared with k=1 (d = 0.1), not with k=2
    # k=1 <0.1, Δ=0> = 0: r = 1.   k=3 d = 3: <3, 0.1> = 0.3, capped: 1.1; with k=2 (d = -1) it would be 0.1
    assert rates_of([1.0, 0.1, -1.0, 3.0], epoch_steps=2, delta=0.0, cohort=1) == pytest.approx([1, 1, 1, 1, 1.1])


def test_the_ratio_stays_within_ten() -> None:
    assert rates_of([1.0] * 60, epoch_steps=60, delta=1.0, cohort=1)[-1] == pytest.approx(10.0)
    assert rates_of([1.0, 9.0, -9.0, 1.0], epoch_steps=4, delta=1.0, cohort=1, lr=0.5)[3] == pytest.approx(0.05)


def test_nan_does_not_raise_the_rate() -> None:
    # in the released code min(1.1, nan) = 1.1: each NaN raises the rate by 10 %
    assert rates_of([1.0, math.nan, 1.0], epoch_steps=3, delta=0.1, cohort=1)[2] == 1.0


@pytest.mark.parametrize("model", ["logistic", "cnn"])
def test_fast_equals_slow_over_epochs(model: str) -> None:
    settings = {"model": model, "local_epochs": 3, "local_lr": 0.5, "batch_size": 8, "clients_per_round": 5}
    slow, fast = (
        run(make_simulation("fedhyper-cl-released", engine=engine, workers=2, **settings), 3)
        for engine in ("sequential", "fast")
    )
    for a, b in zip(slow, fast, strict=True):
        for key in ("local_lr", "local_lr_min", "local_lr_max", "train_loss", "bytes_down"):
            assert a[key] == pytest.approx(b[key], rel=2e-3), key
    assert slow[-1]["local_lr_max"] > slow[-1]["local_lr_min"]
