"""One client of ten that means harm: no single one, whatever it sends, moves a run by more than its share."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    Strategy,
)

from fedhyper.flower import FedHyper, mod
from tests.flower_apps.suite import PYTORCH, run
from tests.flower_support import LocalGrid, arrays, initial, numbers, quadratic_app, same_bits

NAME = "fc.weight"
Attack = Callable[[Message, LocalGrid], None]


# --- the attacks -----------------------------------------------------------------------------------------------------


def train_round(grid: LocalGrid) -> int:
    return int(grid.sent[-1].content["config"]["server-round"])


def lies(loss: Callable[[float], float], rounds: range = range(1, 1000)) -> Attack:
    def attack(reply: Message, grid: LocalGrid) -> None:
        metrics = reply.content["metrics"]
        for key in ("fedhyper.loss", "fedhyper.train-loss", "train_loss"):
            if train_round(grid) in rounds and key in metrics:
                metrics[key] = loss(float(metrics[key]))

    return attack


def claims(**named: Any) -> Attack:
    def attack(reply: Message, grid: LocalGrid) -> None:
        reply.content["metrics"].update({key.replace("_", "-"): value for key, value in named.items()})

    return attack


def says_nothing_at_first(reply: Message, grid: LocalGrid) -> None:
    if train_round(grid) == 1:
        for key in ("fedhyper.loss", "fedhyper.train-loss", "fedhyper.lr"):
            reply.content["metrics"].pop(key, None)


def stretched(factor: float) -> Attack:
    def attack(reply: Message, grid: LocalGrid) -> None:
        sent, came = (numbers(message.content["arrays"]) for message in (grid.sent[-1], reply))
        trained = [name for name in sent if not name.startswith(("bn.running", "bn.num"))]
        moved = {name: sent[name] + factor * (came[name] - sent[name]) for name in trained}
        reply.content["arrays"] = arrays(**came | {name: moved[name].astype(sent[name].dtype) for name in trained})

    return attack


def sends_the_last_step_back(reply: Message, grid: LocalGrid) -> None:
    """The server's last step, 100 times as long and turned round: opposes the run, and the hypergradient with it."""
    t = train_round(grid)
    asked = [message for message in grid.sent if message.metadata.message_type == "train"]
    known = {int(message.content["config"]["server-round"]): message for message in asked}
    if t > 1:
        now, old = (numbers(known[k].content["arrays"]) for k in (t, t - 1))
        reply.content["arrays"] = arrays(**{name: now[name] - 100 * (now[name] - old[name]) for name in now})


def both(*attacks: Attack) -> Attack:
    def attack(reply: Message, grid: LocalGrid) -> None:
        for one in attacks:
            one(reply, grid)

    return attack


ATTACKS: dict[str, Attack] = {
    "loss 1e9 from round 6": lies(lambda _: 1e9, range(6, 1000)),
    "loss 1e9": lies(lambda _: 1e9),
    "loss -1e9 once": lies(lambda _: -1e9, range(7, 8)),
    "loss -1e9": lies(lambda _: -1e9),
    "loss NaN": lies(lambda _: math.nan),
    "loss x 3": lies(lambda loss: 3 * loss),
    "loss 10 in rounds 6 to 20": lies(lambda _: 10.0, range(6, 21)),
    "sq-norm 1.7e308": claims(**{"fedhyper.sq_norm": 1.7e308}),
    "no loss in round 1": says_nothing_at_first,
    "update x -10": stretched(-10),
    "update x 1e6": stretched(1e6),
    "last step x -100": sends_the_last_step_back,
    "weight 2**53": claims(num_examples=2**53),
    "weight 2**53, update x -10": both(claims(num_examples=2**53), stretched(-10)),
}
ROUNDS = 20


def accuracy(attack: str | None, make: Callable[[], Strategy] = FedAvg, **settings: Any) -> tuple[float, FedHyper]:
    strategy = FedHyper(make(fraction_evaluate=0.0), seed=0, **settings)  # type: ignore[call-arg]
    grid = LocalGrid(PYTORCH.client(mod), 10)

    def spoil(reply: Message) -> Message:
        if attack is not None:
            ATTACKS[attack](reply, grid)
        return reply

    grid.spoil = {3: spoil}
    return run(PYTORCH, strategy, grid, num_rounds=ROUNDS)[0], strategy


@cache
def clean() -> float:
    return accuracy(None)[0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_hostile_client_of_ten_costs_a_few_points_at_most(attack: str) -> None:
    found, strategy = accuracy(attack)
    assert found > clean() - 0.03
    assert all(1e-5 <= record["local_lr"] <= 10 for record in strategy.history)
    assert sum(record["rollback"] for record in strategy.history) <= 1


@pytest.mark.parametrize("attack", ["update x -10", "update x 1e6", "last step x -100", "weight 2**53, update x -10"])
def test_without_the_cap_the_same_attack_ruins_the_run(attack: str) -> None:
    assert accuracy(attack, norm_cap=0.0)[0] < 0.7


@pytest.mark.parametrize("make", [FedMedian, FedTrimmedAvg, lambda **named: Krum(num_malicious_nodes=1, **named)])
@pytest.mark.parametrize("attack", ["loss 1e9 from round 6", "update x 1e6"])
def test_around_a_robust_strategy_lies_about_the_loss_do_no_harm_either(make: Any, attack: str) -> None:
    """They weigh nobody: the cap has no part in it, and the schedule must not be what lets the liar in."""
    assert accuracy(attack, make)[0] > accuracy(None, make)[0] - 0.05


# --- one round, by numbers -------------------------------------------------------------------------------------------


def one_round(attack: Attack | None, *, nodes: int = 6, inner: Strategy | None = None, **settings: Any) -> Any:
    grid = LocalGrid(quadratic_app(), nodes)

    def spoil(reply: Message) -> Message:
        if attack is not None:
            attack(reply, grid)
        return reply

    grid.spoil = {2: spoil}
    strategy = FedHyper(inner or FedAvg(fraction_evaluate=0.0), "constant", seed=0, local_lr=0.02, **settings)
    result = strategy.start(grid, initial(), num_rounds=1)
    return result.arrays, strategy


@pytest.mark.parametrize("factor", [-10.0, 1e6, -1e20])
def test_a_long_update_pulls_no_harder_than_a_usual_one(factor: float) -> None:
    honest, one, other, free = (
        numbers(one_round(attack, norm_cap=cap)[0])[NAME]
        for attack, cap in ((None, 3.0), (stretched(factor), 3.0), (stretched(7 * factor), 3.0), (stretched(factor), 0))
    )
    usual = float(np.linalg.norm(honest - numbers(initial())[NAME]))
    assert np.linalg.norm(one - honest) < usual
    np.testing.assert_allclose(one, other, atol=0.05 * usual)  # how long it is makes no difference
    assert np.linalg.norm(free - honest) > 1.5 * np.linalg.norm(one - honest)


def test_a_claim_is_worth_ten_medians_at_most_and_no_more_than_another_s_pull() -> None:
    huge, large, honest = (
        one_round(attack)[0] for attack in (claims(num_examples=2**53), claims(num_examples=900), None)
    )
    assert same_bits(huge, large)
    assert not same_bits(huge, honest)


def test_statistics_far_off_cost_weight_too() -> None:
    """Nothing else would notice them: in training BatchNorm does not use them."""

    def far(reply: Message, grid: LocalGrid) -> None:
        came = numbers(reply.content["arrays"])
        reply.content["arrays"] = arrays(**{**came, "bn.running_mean": np.full(4, 1e20, np.float32)})

    kept, free = (numbers(one_round(far, norm_cap=cap)[0])["bn.running_mean"] for cap in (3.0, 0.0))
    assert np.abs(kept).max() < 20  # the honest ones' are their partitions, 0 to 5
    assert np.abs(free).max() > 1e18


@pytest.mark.parametrize("schedule", ["g", "auto"])  # in auto's first steps few replies are used, or one
@pytest.mark.parametrize("lie", [2**63 - 1, -5])
def test_one_client_does_not_set_a_counter(schedule: str, lie: int) -> None:
    def spoil(reply: Message) -> Message:
        came = numbers(reply.content["arrays"])
        reply.content["arrays"] = arrays(**{**came, "bn.num_batches_tracked": np.asarray(lie)})
        return reply

    for hostile in range(5):
        strategy = FedHyper(FedAvg(fraction_evaluate=0.0), schedule, seed=0, local_lr=0.02)
        grid = LocalGrid(quadratic_app(), 5, spoil={hostile: spoil})
        result = strategy.start(grid, initial(), num_rounds=6)
        stepped = sum(record["clients_used"] > 0 for record in strategy.history)
        counted = numbers(result.arrays)["bn.num_batches_tracked"]
        assert 3 * stepped <= counted <= 7 * stepped  # each round: + 3 + partition


def test_an_update_too_long_to_be_measured_is_refused() -> None:
    """Float64 models only: finite numbers, and a square that is not."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy() - 0.1
        if context.node_config["partition-id"] == 0:
            w = np.full(4, 1e200)
        metrics = MetricRecord({"num-examples": 1, "train_loss": 1.0})
        return Message(RecordDict({"arrays": arrays(w=w), "metrics": metrics}), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), "g")
    strategy.start(LocalGrid(app, 4), arrays(w=np.zeros(4)), num_rounds=2)
    assert [reason for _, reason in strategy.rejected] == ["an update too long to be measured"]
    assert strategy.history[-1]["clients_used"] == 3


# --- inside noise ----------------------------------------------------------------------------------------------------


def test_inside_noise_all_weigh_alike_because_the_noise_is_made_for_that() -> None:
    """z·C/n covers one of n that moved by C; a client that claims to be all of them would move the mean by C."""

    def noisy() -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 1e-9, 0.5, 6)

    honest, claimed = (
        numbers(one_round(attack, inner=noisy())[0])[NAME] for attack in (None, claims(num_examples=2**53))
    )
    np.testing.assert_allclose(claimed, honest, atol=1e-6)
    moved = np.linalg.norm(numbers(one_round(stretched(-1e6), inner=noisy())[0])[NAME] - honest)
    assert moved <= 2 * 0.5 / 6 + 1e-6  # clipped by Flower, one of six by us


def test_a_client_that_does_not_clip_itself_weighs_as_if_it_had() -> None:
    def noisy(clip: float = 5.0) -> Strategy:
        return DifferentialPrivacyClientSideFixedClipping(FedAvg(fraction_evaluate=0.0), 1e-9, clip, 6)

    honest, long = (numbers(one_round(attack, inner=noisy())[0])[NAME] for attack in (None, stretched(1e6)))
    assert np.linalg.norm(long - honest) <= 2 * 5.0 / 5
