"""``Server``: what a person with a loop of their own uses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper import Constant, FedHyperG, LastRounds, Momentum, Pair, Server, auto


def fedavg(lr: float = 0.1) -> Pair:
    return Pair(local_rule=Constant(lr=lr))


def test_clients_updates_and_their_mean_are_the_same_round() -> None:
    updates = [np.array([1.0, 2.0]), np.array([3.0, 0.0])]
    one, two = Server(np.zeros(2), fedavg()), Server(np.zeros(2), fedavg())
    one.step(updates, loss=[1.0, 2.0])
    two.step(np.array([2.0, 1.0]), loss=1.5, sq_norm=7.0)
    assert np.array_equal(one.weights, two.weights)
    assert np.array_equal(one.weights, [-2.0, -1.0])
    assert (one.local_lr, one.global_lr, one.round) == (0.1, 1.0, 1)


@pytest.mark.parametrize("loss", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_a_mean_loss_may_be_any_number(loss: Any) -> None:
    for update in (np.ones(2), [np.ones(2)] * 3):
        plain, other = Server(np.zeros(2)), Server(np.zeros(2))
        plain.step(update, loss=0.5)
        other.step(update, loss=loss)
        assert other.state.plan == plain.state.plan


def test_examples_weigh() -> None:
    server = Server(np.zeros(1), fedavg())
    server.step([np.array([1.0]), np.array([4.0])], examples=[2, 1])
    assert server.weights == pytest.approx(-2.0)


def test_an_update_that_is_not_finite_is_left_out() -> None:
    server = Server(np.zeros(1), fedavg())
    assert server.step([np.array([1.0]), np.array([math.nan])]).action == "step"
    assert server.weights == -1.0
    assert server.step([np.array([math.inf])]).action == "idle"
    assert server.step(np.array([math.nan])).action == "idle"
    assert server.step([]).action == "idle"
    assert server.weights == -1.0
    assert server.round == 4


def test_a_client_without_examples_says_nothing_about_the_rate() -> None:
    server = Server(np.zeros(1))
    assert server.step([np.ones(1)], loss=[1.0], examples=[0]).action == "idle"
    assert server.local_lr == 0.01
    assert server.step([np.full(1, math.nan)], loss=[1.0], examples=[0]).local_lr < 0.01


@pytest.mark.parametrize("form", ["numpy", "torch", "list", "dict"])
def test_any_form_of_weights(form: str) -> None:
    def make(a: float, b: float) -> Any:
        x, y = np.array([a, b]), np.array([[b]])
        return {
            "numpy": x,
            "torch": torch.tensor([a, b]),
            "list": [x, y],
            "dict": {"x": x, "y": y},
        }[form]

    server = Server(make(1.0, 2.0), Pair(global_rule=FedHyperG()), optimizer=Momentum(momentum=0.5), norm_cap=0.0)
    server.step([make(0.1, 0.0), make(0.3, 0.2)])
    server.step(make(0.1, 0.1))
    start, end = make(1.0, 2.0), server.weights
    assert type(end) is type(start)
    first = end["x"] if form == "dict" else end[0] if form == "list" else end
    alpha = server.global_lr
    np.testing.assert_allclose(np.asarray(first), [0.8 - alpha * 0.2, 1.9 - alpha * 0.15], rtol=1e-6)


def test_weights_are_never_written_to() -> None:
    start = np.ones(3)
    server = Server(start)
    for _ in range(5):
        server.step([np.ones(3), np.ones(3)], loss=[1.0, 1.0])
    assert np.array_equal(start, np.ones(3))


@pytest.mark.parametrize("plan", [None, auto(), fedavg(), Pair(global_rule=FedHyperG())])
def test_a_saved_state_goes_on_to_the_same_bits(plan: Any) -> None:
    rng = np.random.default_rng(0)
    rounds = [(rng.normal(size=(4, 3)), rng.random(4)) for _ in range(12)]
    whole, first, second = (Server(np.zeros(3), plan) for _ in range(3))
    for deltas, losses in rounds:
        whole.step(list(deltas), loss=losses)
    for deltas, losses in rounds[:5]:
        first.step(list(deltas), loss=losses)
    second.load_state_dict(first.state_dict())
    for deltas, losses in rounds[5:]:
        second.step(list(deltas), loss=losses)
    assert np.array_equal(whole.weights, second.weights)
    assert np.array_equal(whole.averaged, second.averaged)
    assert whole.local_lr == second.local_lr


def test_a_state_of_something_else_is_refused() -> None:
    server = Server(np.zeros(1))
    saved = server.state_dict()
    with pytest.raises(ValueError, match="LoopState has the keys"):
        server.load_state_dict({"weights": 1})
    saved["plan"]["local_lr"] = math.nan
    with pytest.raises(ValueError, match="finite numbers above 0"):
        server.load_state_dict(saved)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": [1.0]}, "loss has 1 numbers for 2 updates"),
        ({"examples": [1.0]}, "examples has 1 numbers for 2 updates"),
        ({"examples": [1.0, -1.0]}, "examples must be finite numbers of at least 0"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Server(np.zeros(1)).step([np.ones(1), np.ones(1)], **given)


def test_averaged_is_the_mean_of_the_last_rounds_or_the_newest() -> None:
    plain, mean = Server(np.zeros(1), fedavg()), Server(np.zeros(1), fedavg(), average=LastRounds(0.0))
    for server in (plain, mean):
        server.step(np.ones(1))
        server.step(np.ones(1))
    assert (plain.averaged, mean.averaged) == (-2.0, -1.5)


def test_statistics_are_averaged_with_the_examples_and_never_stepped() -> None:
    server = Server(np.zeros(2), Pair(global_rule=Constant(lr=3.0)), statistics=np.zeros(1))
    updates, statistics = [np.ones(2), np.ones(2), np.full(2, np.nan)], [np.ones(1), np.full(1, 5.0), np.full(1, 9.0)]
    server.step(updates, examples=[3, 1, 1], statistics=statistics)
    assert server.state.now.statistics == 2.0  # (3·1 + 1·5) / 4: not times the global rate, not the refused client's
    assert server.weights.tolist() == [-3.0, -3.0]
    server.step(np.ones(2))
    assert server.state.now.statistics == 2.0  # nobody sent any
    server.step(np.ones(2), statistics=np.full(1, 7.0))
    assert server.state.now.statistics == 7.0


@pytest.mark.parametrize(
    ("lie", "weight"), [(-10.0, 1.0), (1e6, 1.0), (1e100, 1.0), (-1.0, float(2**53)), (-1e-30, 1e300)]
)
def test_no_client_moves_the_model_by_more_than_its_share(lie: float, weight: float) -> None:
    """Ten clients whose updates agree: the worst that one can do is to hardly move, with the weight of ten."""
    honest = np.ones(4)
    server = Server(np.zeros(4), Pair(local_rule=Constant(lr=0.1)))
    server.step([honest] * 9 + [honest * lie], loss=[1.0] * 10, examples=[1.0] * 9 + [weight])
    moved = -server.weights
    assert (moved >= 0.45).all()  # 9/(9 + 10); who turns round takes back a tenth of the others' 9: 8.1/9.9
    assert (moved <= 1.2).all()
    free = Server(np.zeros(4), Pair(local_rule=Constant(lr=0.1)), norm_cap=0.0)
    free.step([honest] * 9 + [honest * -10.0], examples=[1.0] * 10)
    assert free.weights == pytest.approx(np.full(4, 0.1))  # without a cap one client has turned the mean around


def test_a_norm_cap_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="norm_cap must be a finite number of at least 0, got -1"):
        Server(np.zeros(2), norm_cap=-1)


def test_a_client_that_does_not_answer_while_rates_are_tried_leaves_a_gap() -> None:
    def tried(gone: int | None) -> Server:
        server = Server(np.zeros(2))
        for _ in range(3):
            rates = np.array(server.rates(10))[:, None]
            off = server.weights - 1.0
            end = off * np.maximum(1 - rates, -1) ** 5
            before, after = [float(off @ off)] * 10, (end**2).sum(1)
            lists: list[list[Any]] = [list(off - end), before, list((np.array(before) + after) / 2)]
            if gone is not None:
                for one in lists:
                    one[gone] = None
            weights = [None if i == gone else 3.0 for i in range(10)]
            server.step(lists[0], loss=lists[1], train_loss=lists[2], examples=weights)
        return server

    whole = tried(None)
    assert whole.local_lr > 0.03
    for gone in range(10):
        assert tried(gone).local_lr == pytest.approx(whole.local_lr, rel=9)


@pytest.mark.parametrize("telling", [0, 4])
def test_where_half_of_the_clients_or_more_say_no_training_loss_those_at_the_lowest_rates_are_used(
    telling: int,
) -> None:
    server = Server(np.zeros(1))
    rates = server.rates(9)
    updates: list[Any] = [np.full(1, rate) for rate in rates]
    lowest = sorted(rates)
    updates[rates.index(lowest[0])] = np.full(1, math.nan)
    said = [0.5 if i < telling else None for i in range(9)]
    assert server.step(updates, loss=[1.0] * 9, train_loss=said).action == "step"
    assert -lowest[3] <= server.weights[0] < 0.0
    assert server.local_lr == 0.01  # the hint


def test_where_all_diverge_and_nobody_says_a_training_loss_the_rate_falls() -> None:
    server, rates = Server(np.zeros(1)), []
    for _ in range(3):
        n = len(server.rates(4))
        server.step([np.full(1, math.nan)] * n, loss=[1.0] * n)
        rates.append(server.local_lr)
    assert rates[0] == pytest.approx(10**-2.5)
    assert rates[-1] < rates[0]


def test_a_call_that_is_refused_can_be_made_again() -> None:
    server = Server(np.zeros(1))
    server.rates(3)
    with pytest.raises(
        ValueError, match=r"2 updates for the 3 clients of rates\(\); put None where one did not answer"
    ):
        server.step([np.ones(1)] * 2, loss=[1.0] * 2, train_loss=[0.9] * 2)
    with pytest.raises(ValueError, match="train_loss has 2 numbers for 3 updates"):
        server.step([np.ones(1)] * 3, loss=[1.0] * 3, train_loss=[0.9] * 2)
    server.step([np.ones(1), None, np.ones(1)], loss=[1.0, None, 1.0], train_loss=[0.9, None, 0.8])
    assert len(server.state.plan.tried) == 2


@pytest.mark.parametrize("lie", [math.nan, math.inf, 1e9, -1e9])
def test_no_clients_statistics_are_more_than_its_share(lie: float) -> None:
    server = Server(np.zeros(3), fedavg(), statistics=np.zeros(2))
    for _ in range(5):
        own = [np.full(2, lie), *[np.array([1.0, 1.0 + 0.1 * i]) for i in range(9)]]
        server.step([np.array([0.1, 0.2, 0.1 * i]) for i in range(10)], statistics=own)
    assert np.abs(server.state.now.statistics).max() < 3


def test_an_update_too_long_to_be_measured_does_not_free_others() -> None:
    def end(first: float) -> Any:
        server = Server(torch.zeros(4, dtype=torch.float64), fedavg())
        server.step(
            [
                torch.full((4,), first, dtype=torch.float64),
                *[torch.ones(4, dtype=torch.float64)] * 8,
                torch.full((4,), -10.0, dtype=torch.float64),
            ]
        )
        return server.weights

    assert torch.equal(end(1e200), end(math.nan))


@pytest.mark.parametrize(
    ("update", "shape"),
    [
        (np.ones((10, 3)), r"\(10, 3\)"),  # a stack of clients where their mean is asked for
        ([np.ones(3), np.ones(4)], r"\(4,\)"),
        ([0.1, 0.2, 0.3], r"\(\)"),  # the mean as a list: it was taken for three clients of one number each
        ("x", r"\(\)"),
    ],
)
def test_an_update_of_another_shape_is_refused_by_its_shape(update: Any, shape: str) -> None:
    server = Server(np.zeros(3))
    with pytest.raises(ValueError, match=rf"^an update has the shape {shape}, the weights have \(3,\); give a"):
        server.step(update)
    assert server.round == 0


def test_no_update_at_all_is_a_round_without_answers() -> None:
    alone, empty = Server(np.zeros(3)), Server(np.zeros(3))
    assert alone.step(None).action == empty.step([]).action == "idle"
