"""``FedHyper(..., privacy=...)``: clip, mean, noise, and only then schedule and step, on an in-process Flower."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedYogi,
    Strategy,
)

from fedhyper.automatic.ladder import RUNGS
from fedhyper.errors import CheckpointRefused, TrainingStopped, UserError
from fedhyper.flower import FedHyper, identify
from fedhyper.flower.wire import GAIN, VOTE
from fedhyper.privacy import Privacy
from tests.flower_support import LocalGrid, arrays, initial, numbers, same_bits

NODES = 40
QUIET = Privacy(noise=1e-9, clip=1e3, adaptive=False)
FIXED = Privacy(noise=0.5, clip=0.5, adaptive=False)
ADAPTIVE = Privacy(noise=0.5, clip=0.1)


def app(*, vote: int | None = None, scale: float = 1.0, secret: float = 0.0) -> ClientApp:
    """Partition p moves every weight by ``scale`` · (1 + p mod 3) · local-lr; ``secret`` is in its metrics only."""
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        step = scale * (1 + partition % 3) * float(message.content["config"]["local-lr"])
        moved = {name: value - np.float32(step) for name, value in numbers(message.content["arrays"]).items()}
        said: dict[str, Any] = {"num-examples": 10**partition if partition < 9 else 7, "loss": 1.0 + secret + partition}
        if vote is not None and message.content["config"].get("fedhyper.climb"):
            said |= {VOTE: vote, GAIN: 1.0 + secret}
        return Message(RecordDict({"arrays": arrays(**moved), "metrics": MetricRecord(said)}), reply_to=message)

    return identify(made)


def model() -> ArrayRecord:
    return arrays(a=np.zeros((3, 2), np.float32), b=np.ones(4, np.float32))


def hyper(privacy: Privacy, inner: Strategy | None = None, schedule: Any = "constant", **more: Any) -> FedHyper:
    inner = FedAvg(fraction_train=0.5) if inner is None else inner
    return FedHyper(inner, schedule, **{"seed": 0, "nodes": NODES, "local_lr": 0.1} | more, privacy=privacy)


def start(strategy: FedHyper, rounds: int = 3, client: ClientApp | None = None, **more: Any) -> ArrayRecord:
    grid = LocalGrid(client or app(), NODES, **{k: more.pop(k) for k in ("shuffle", "spoil") if k in more})
    result = strategy.start(grid, model(), num_rounds=rounds, **more)
    assert result.arrays is not None
    return result.arrays


# The mechanism -------------------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_mean_of_all_alike_over_how_many_were_expected() -> None:
    """Weights that clients claim (1 to 1e8) count nothing, and the sum is divided by q·N, not by who came."""
    strategy, grid = hyper(QUIET), LocalGrid(app(), NODES)
    result = strategy.start(grid, model(), num_rounds=1)
    asked = [grid.partition(m.metadata.dst_node_id) for m in grid.sent if m.metadata.message_type == "train"]
    expected = sum(0.1 * (1 + partition % 3) for partition in asked) / 20
    assert len(asked) != 20  # a coin each
    assert result.arrays is not None
    np.testing.assert_allclose(numbers(result.arrays)["a"], -expected, rtol=1e-5)


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM, FedAdam, FedYogi])
def test_no_update_adds_more_than_its_share(inner: Any) -> None:
    """The same noise, and everybody sends a million times as much: the mean is M·C/M long at most, whatever steps."""
    rule = Privacy(noise=1e-6, clip=0.01, adaptive=False)
    strategy = hyper(rule, inner(fraction_train=0.5), "g")
    start(strategy, 1, app(scale=1e6))
    drawn = strategy.history[0]["clients_used"]
    assert strategy.history[0]["update_norm"] == pytest.approx(0.01 * drawn / 20, rel=1e-3)


def test_the_noise_is_as_long_as_it_says() -> None:
    """Nobody moves: what is left is z·C/M in each of n coordinates."""
    big = arrays(a=np.zeros(20_000, np.float32))
    strategy = hyper(FIXED)
    result = strategy.start(LocalGrid(app(scale=0.0), NODES), big, num_rounds=1)
    assert result.arrays is not None
    assert np.std(numbers(result.arrays)["a"]) == pytest.approx(0.5 * 0.5 / 20, rel=0.02)


def test_clipping_follows_the_median_length() -> None:
    """Updates are 0.32, 0.63 and 0.95 long: C rises from 0.1 to the middle, by at most e^0.1 a round."""
    strategy = hyper(ADAPTIVE)
    start(strategy, 60)
    found = strategy._run.private
    assert found is not None
    assert found.spent.clip == pytest.approx(0.63, rel=0.35)
    fixed = hyper(FIXED)
    start(fixed, 3)
    assert fixed._run.private is not None
    assert fixed._run.private.spent.clip == 0.5


def test_the_mean_has_its_noise_also_when_nobody_comes() -> None:
    strategy = hyper(Privacy(noise=1.0, clip=1.0, adaptive=False), FedAvg(fraction_train=1e-6), "g")
    start(strategy, 2)
    assert [record["clients_used"] for record in strategy.history] == [0, 0]
    assert all((record["update_norm"] or 0) > 1 for record in strategy.history)


def test_both_rates_are_made_of_what_has_its_noise() -> None:
    """The same noisy means in two apps that differ in their metrics only: the same run, to the bit."""
    for schedule in ("auto", "g", "sl", "g+sl", "cl"):
        one, two = (hyper(ADAPTIVE, schedule=schedule) for _ in "ab")
        assert same_bits(start(one, 4), start(two, 4, app(secret=123.0)))
        assert [r["local_lr"] for r in one.history] == [r["local_lr"] for r in two.history]
        assert all(record["train_loss"] is None for record in two.history)


def test_metrics_of_clients_do_not_come_out() -> None:
    strategy = hyper(FIXED)
    result = strategy.start(LocalGrid(app(secret=5.0), NODES), model(), num_rounds=2)
    ours = {"global-lr", "local-lr", "clients-used", "clients-rejected", "rollback", "epsilon"}
    assert {key for metrics in result.train_metrics_clientapp.values() for key in metrics} == {
        f"fedhyper.{key}" for key in ours
    }
    assert not any(result.evaluate_metrics_clientapp.values())


def test_nobody_is_asked_to_evaluate(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = hyper(FIXED), LocalGrid(app(), NODES)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.start(grid, model(), num_rounds=2)
    assert {message.metadata.message_type for message in grid.sent} <= {"train", "query.fedhyper"}
    assert sum("not asked to evaluate" in line for line in caplog.messages) == 1


# Votes for a rate ----------------------------------------------------------------------------------------------------


def test_votes_are_counted_with_noise_and_cost_a_round() -> None:
    strategy = hyper(ADAPTIVE, schedule="auto")
    start(strategy, 2, app(vote=-3))
    assert strategy._run.private is not None
    assert strategy._run.private.spent.released == 3
    assert strategy.history[1]["local_lr"] == pytest.approx(10**-1.5)
    assert strategy.history[0]["epsilon"] == pytest.approx(ADAPTIVE.epsilon(2, 0.5))
    assert RUNGS > 20  # bins, each with its noise


def test_a_round_that_nobody_came_to_does_not_end_the_start() -> None:
    calls = {"n": 0}

    def late(reply: Message) -> Message:
        calls["n"] += 1
        return Message(Error(1, "starting"), reply_to=reply) if calls["n"] <= NODES else reply

    strategy = hyper(ADAPTIVE, FedAvg(fraction_train=1.0), "auto")
    start(strategy, 3, app(vote=-3), spoil=dict.fromkeys(range(NODES), late))
    assert [row["clients_used"] for row in strategy.history] == [0, NODES, NODES]
    assert strategy.history[2]["local_lr"] == pytest.approx(10**-1.5, rel=0.2)  # and it follows from there


def test_clients_that_cannot_try_rates_begin_at_the_one_that_is_given() -> None:
    strategy, grid = hyper(ADAPTIVE, schedule="auto", local_lr=0.02), LocalGrid(app(), NODES)
    strategy.start(grid, model(), num_rounds=2)
    sent = [m.content["config"]["local-lr"] for m in grid.sent if m.metadata.message_type == "train"]
    first = sent[: int(strategy.history[0]["clients_used"])]
    assert set(first) == {0.02}
    assert strategy._run.private is not None
    assert strategy._run.private.spent.released == 2  # nothing was voted on


# Who takes part, and what it has cost --------------------------------------------------------------------------------


def test_each_node_has_a_coin_of_its_own() -> None:
    """Binomial(40, 1/2): mean 20, deviation 3.2; another sample every round, and FedAvg's own setting comes back."""
    strategy, grid = hyper(FIXED), LocalGrid(app(), NODES)
    strategy.start(grid, model(), num_rounds=40)
    counts = [record["clients_used"] for record in strategy.history]
    assert np.mean(counts) == pytest.approx(20, abs=1.6)  # three standard errors
    assert np.std(counts) == pytest.approx(math.sqrt(10), rel=0.35)
    assert strategy.fraction_train == 0.5


def test_epsilon_is_in_every_record_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    strategy = hyper(FIXED, run_dir=tmp_path / "run")
    with caplog.at_level(logging.INFO, logger="flwr"):
        start(strategy, 3)
    spent = [FIXED.epsilon(t, 0.5) for t in (1, 2, 3)]
    assert [record["epsilon"] for record in strategy.history] == pytest.approx(spent)
    assert f"epsilon = {spent[2]:.3g} at delta = 1e-05 after round 3" in caplog.text
    assert '"epsilon"' in (tmp_path / "run" / "metrics.jsonl").read_text()


# The same bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("schedule", ["auto", "g"])
def test_the_same_bits_whoever_answers_first(schedule: str, inner: Any) -> None:
    runs = [start(hyper(ADAPTIVE, inner(fraction_train=0.5), schedule), 4, app(vote=-3), shuffle=s) for s in (0, 1)]
    assert same_bits(*runs)


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("schedule", ["auto", "g+sl"])
def test_a_resumed_run_has_the_same_bits_and_the_same_epsilon(tmp_path: Path, schedule: str, inner: Any) -> None:
    whole = hyper(ADAPTIVE, inner(fraction_train=0.5), schedule)
    once = start(whole, 6, app(vote=-3))
    for rounds in (2, 6):
        parts = hyper(ADAPTIVE, inner(fraction_train=0.5), schedule, checkpoint=tmp_path / "c")
        again = start(parts, rounds, app(vote=-3), shuffle=rounds, resume=True)
    assert same_bits(once, again)
    assert [r["epsilon"] for r in parts.history] == [r["epsilon"] for r in whole.history]


def test_without_a_seed_nobody_can_take_the_noise_off_and_going_on_costs_what_may_be_told_twice(tmp_path: Path) -> None:
    runs = [start(hyper(FIXED, seed=None), 1) for _ in "ab"]
    assert not same_bits(*runs)
    for rounds in (2, 3):
        strategy = hyper(FIXED, seed=None, checkpoint=tmp_path / "c")
        start(strategy, rounds, resume=True)
    assert strategy.history[-1]["epsilon"] == pytest.approx(FIXED.epsilon(4, 0.5))


@pytest.mark.parametrize("other", [Privacy(noise=0.6, clip=0.5, adaptive=False), None])
def test_a_run_goes_on_with_the_privacy_it_had(tmp_path: Path, other: Privacy | None) -> None:
    start(hyper(FIXED, checkpoint=tmp_path / "c"), 1)
    with pytest.raises(CheckpointRefused, match="privacy was"):
        start(hyper(other, checkpoint=tmp_path / "c"), 2, resume=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("forged", [[0.0, 1], [math.inf, 1], [1.0, -1], [1.0, 0.5], [1.0], None])
def test_a_forged_budget_is_refused(tmp_path: Path, forged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhyper.storage import checkpoint

    path = tmp_path / "c"
    start(hyper(FIXED, checkpoint=path), 1)
    tensors, values = checkpoint.load(path)
    checkpoint.save(path, tensors, values | {"private": forged})
    with pytest.raises(CheckpointRefused, match="not a run's state"):
        start(hyper(FIXED, checkpoint=path), 2, resume=True)


# What does not go with it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"nodes": None}, r"privacy divides by a number that no client can change; .* nodes="),
        ({"aggregate_only": True}, "privacy clips every reply, and aggregate_only shows none"),
        ({"inner": FedMedian()}, "privacy makes the mean itself, and FedMedian makes another; use one of FedAvg, "),
        ({"inner": DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5)}, "without Flower's wrapper"),
        ({"inner": FedAvg(fraction_train=0.0)}, "fraction_train is a node's chance .* got 0.0"),
        (
            {"privacy": Privacy(noise=3.0), "nodes": 20},
            r"privacy.noise = 3 is too much .* more than 30 clients a round",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(more: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        hyper(**{"privacy": FIXED} | more)


def test_statistics_that_would_have_no_noise_are_refused() -> None:
    with pytest.raises(UserError, match=r"averages statistics, which have no noise \(bn.running_mean\)"):
        hyper(FIXED).start(LocalGrid(app(), NODES), initial(), num_rounds=1)


def test_a_bad_reply_is_refused_by_name_and_the_others_are_used() -> None:
    def endless(reply: Message) -> Message:
        reply.content["arrays"] = arrays(a=np.full((3, 2), np.nan, np.float32), b=np.ones(4, np.float32))
        return reply

    strategy = hyper(FIXED, FedAvg(fraction_train=1.0))
    start(strategy, 1, spoil={3: endless})
    assert (strategy.history[0]["clients_used"], strategy.history[0]["clients_rejected"]) == (39, 1)


def test_a_run_whose_clients_all_fail_stops() -> None:
    def fails(reply: Message) -> Message:
        return Message(Error(1, "no disk"), reply_to=reply)

    strategy = hyper(FIXED, FedAvg(fraction_train=0.5), patience=2)
    with pytest.raises(TrainingStopped, match="no usable reply for 2 rounds in a row"):
        start(strategy, 5, spoil=dict.fromkeys(range(NODES), fails))
