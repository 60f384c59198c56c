"""FedHyper around Flower's strategies, in process: what it sends, what it makes of replies, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Strategy,
)

from fedhyper import Auto, Decay, FedExP, FedHyperCL, FedHyperG, FedHyperSL, Pair
from fedhyper.errors import TrainingStopped, UserError
from fedhyper.flower import FedHyper
from fedhyper.flower.losses import Losses
from tests.flower_support import LocalGrid, NoStart, arrays, config, initial, numbers, quadratic_app, same_bits

INNER: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedAvgM off": FedAvgM,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedAdagrad": FedAdagrad,
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Krum": lambda: Krum(num_malicious_nodes=1),
}


def run(strategy: FedHyper, rounds: int = 4, clients: int = 6, app: Any = None, **grid: Any) -> ArrayRecord:
    return strategy.start(LocalGrid(app or quadratic_app(), clients, **grid), initial(), num_rounds=rounds).arrays


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("schedule", ["auto", "g", "g+sl"])
def test_any_strategy_can_be_wrapped_and_the_model_keeps_its_form(name: str, schedule: str) -> None:
    strategy = FedHyper(INNER[name](), schedule, seed=3)
    result = run(strategy, rounds=6)
    for key, array in initial().items():
        assert (result[key].dtype, result[key].shape) == (array.dtype, array.shape)
    assert all(np.isfinite(value).all() for value in numbers(result).values())
    assert [record["clients_rejected"] for record in strategy.history] == [0] * 6
    # in which clients try rates out and only those near the best are used; Adam's first step does damage and is undone
    start = 4 if schedule == "auto" else 0
    assert [record["clients_used"] for record in strategy.history][start:] == [6] * (6 - start)


class InOrder(LocalGrid):
    """Replies in the order of the partitions: the order in which the wrapper sums up."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = super().send_and_receive(messages, timeout=timeout)
        return sorted(replies, key=lambda reply: self.partition(reply.metadata.src_node_id))


@pytest.mark.parametrize("name", ["FedAvg", "FedMedian", "FedTrimmedAvg", "Krum"])
def test_with_constant_rates_of_one_the_bits_are_those_of_plain_flower(name: str) -> None:
    ours = run(FedHyper(INNER[name](), "constant", seed=0, local_lr=0.02, norm_cap=0.0))
    rate = config(**{"local-lr": 0.02})
    theirs = INNER[name]().start(InOrder(quadratic_app(), 6), initial(), num_rounds=4, train_config=rate).arrays
    for key in theirs:
        if key != "bn.num_batches_tracked":  # a float64 after FedAvg
            assert ours[key].data == theirs[key].data


def test_g_by_hand() -> None:
    """Two clients that move a scalar by fixed amounts: Δ is 1, ½, −1, 4 and α becomes 1, 1.5, 1, ⅓ (bound 3)."""
    moves = [1.0, 0.5, -1.0, 4.0]
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        move = moves[int(message.content["config"]["server-round"]) - 1]
        content = {"arrays": arrays(w=w - np.float32(move)), "metrics": MetricRecord({"num-examples": 5})}
        return Message(RecordDict(content), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), FedHyperG(lr=1.0, bound=3.0))
    result = strategy.start(LocalGrid(app, 2), arrays(w=np.asarray([10.0], np.float32)), num_rounds=4)
    # <1,½> = ½, <½,−1> = −½, <−1,4> = −4
    assert [record["global_lr"] for record in strategy.history] == [1.0, 1.5, 1.0, pytest.approx(1 / 3)]
    # 10 − 1·1 − 1.5·½ + 1·1 − ⅓·4
    assert numbers(result.arrays)["w"][0] == pytest.approx(10 - 1 - 0.75 + 1 - 4 / 3, rel=1e-6)


def test_the_local_rate_goes_out_in_both_entries_and_starts_from_the_apps_own() -> None:
    strategy, grid = FedHyper(FedAvg(), "sl"), LocalGrid(quadratic_app(), 3)
    strategy.start(grid, initial(), num_rounds=3, train_config=config(lr=0.003, other="x"))
    sent = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    assert sent[0]["lr"] == sent[0]["local-lr"] == 0.003
    assert sent[0]["other"] == "x"
    assert sent[-1]["local-lr"] == sent[-1]["lr"] == strategy.history[2]["local_lr"] > 0.003
    assert [row["local_lr"] for row in strategy.history] == [c["local-lr"] for c in sent[::3]]  # the rate that was used
    assert [c["server-round"] for c in sent[::3]] == [1, 2, 3]
    assert FedHyper(FedAvg(), "sl", local_lr=0.5, lr_key="eta").local_lr == 0.5


def test_the_users_train_config_is_left_alone() -> None:
    given = config(lr=0.003)
    FedHyper(FedAvg(), "sl").start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=2, train_config=given)
    assert dict(given.items()) == {"lr": 0.003}


def test_fedavgm_steps_from_the_weights_that_are_really_sent() -> None:
    """Without momentum FedAvgM is FedAvg; scaled by α its own copy would run away from the model."""
    rules = (FedHyperG(lr=0.5, bound=1.0),)
    momentum = run(FedHyper(FedAvgM(server_learning_rate=1.0 + 1e-9), rules, seed=1, local_lr=0.05))
    plain = run(FedHyper(FedAvg(), rules, seed=1, local_lr=0.05))
    for name in ("conv.weight", "fc.weight"):
        np.testing.assert_allclose(numbers(momentum)[name], numbers(plain)[name], rtol=1e-5)


def test_auto_evaluates_and_returns_a_mean_of_the_last_rounds_and_trains_from_the_newest() -> None:
    plan = Auto(recency=1.0)
    strategy, grid = FedHyper(FedAvg(), plan, seed=2), LocalGrid(quadratic_app(), 6)
    seen: list[tuple[float, dict[str, Any]]] = []

    def evaluate(server_round: int, record: ArrayRecord) -> None:
        averaged = strategy.state.averaged
        seen.append((2 / (averaged + 1) if averaged else 1.0, numbers(record)))  # (η + 1)/(k + η), η = 1

    result = strategy.start(grid, initial(), num_rounds=12, evaluate_fn=evaluate)
    sent = {
        kind: [numbers(m.content["arrays"]) for m in grid.sent if m.metadata.message_type == kind][::6]
        for kind in ("train", "evaluate")
    }
    assert sum(newest < 1 for newest, _ in seen) > 5
    mean = sent["train"][0]
    for (newest, found), new in zip(seen[1:], sent["train"][1:], strict=False):
        for name in new:
            plain = newest == 1 or name == "bn.num_batches_tracked"
            mean[name] = new[name] if plain else mean[name] + np.float32(newest) * (new[name] - mean[name])
            assert (found[name] == mean[name]).all()
    for (_, found), asked in zip(seen[1:], sent["evaluate"], strict=True):
        assert all((found[name] == asked[name]).all() for name in found)
    assert all((seen[-1][1][name] == value).all() for name, value in numbers(result.arrays).items())


def test_momentum_by_hand() -> None:
    """m_t = μ m_t-1 + Δ_t, w − α m_t, and α from the raw Δ: here 1, then 1 + <Δ_1, Δ_2>."""
    moves = [0.5, 0.25]
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        move = np.float32(moves[int(message.content["config"]["server-round"]) - 1])
        w = message.content["arrays"]["w"].numpy() - move
        return Message(
            RecordDict(
                {"arrays": arrays(w=w), "m": MetricRecord({"num-examples": 1 + message.metadata.dst_node_id % 7})}
            ),
            reply_to=message,
        )

    strategy = FedHyper(FedAvgM(server_momentum=0.5, fraction_evaluate=0.0), "g")
    result = strategy.start(LocalGrid(app, 3), arrays(w=np.zeros(1, np.float32)), num_rounds=2)
    alpha = 1 + 0.5 * 0.25
    assert strategy.history[1]["global_lr"] == pytest.approx(alpha)
    assert numbers(result.arrays)["w"][0] == pytest.approx(-0.5 - alpha * (0.5 * 0.5 + 0.25))


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
@pytest.mark.parametrize("schedule", ["g", "auto"])
def test_buffers_are_averaged_and_never_stepped(name: str, schedule: str) -> None:
    # where rates are tried out, the first round's mean is of the clients nearest the best rate: one of the two
    result = numbers(run(FedHyper(INNER[name](), schedule, seed=0), clients=2))
    weights = np.asarray([10, 11])  # num-examples of partitions 0 and 1, whose running_mean is their number
    mean = (weights * range(2)).sum() / weights.sum()
    if schedule == "g":
        np.testing.assert_allclose(result["bn.running_mean"], mean, rtol=1e-6)
    else:  # a mean over rounds, the first one among them
        assert ((result["bn.running_mean"] > 0) & (result["bn.running_mean"] < 1)).all()
    assert result["bn.num_batches_tracked"] == 4 * 3  # each round: + 3 + partition, of two the lower
    assert result["bn.num_batches_tracked"].dtype == np.int64


def test_trainable_can_be_named() -> None:
    settings: dict[str, Any] = {"local_lr": 0.05, "norm_cap": 0.0}
    frozen = run(FedHyper(FedAvg(), FedHyperG(lr=2.0, bound=1.0), trainable=["fc.weight"], **settings), rounds=1)
    whole = run(FedHyper(FedAvg(), FedHyperG(lr=2.0, bound=1.0), **settings), rounds=1)
    plain = run(FedHyper(FedAvg(), "constant", **settings), rounds=1)
    assert frozen["fc.weight"].data == whole["fc.weight"].data
    assert frozen["conv.weight"].data == plain["conv.weight"].data  # averaged, not stepped twice as far
    for bad in (["nope"], lambda name: False):
        with pytest.raises(ValueError, match="trainable"):
            run(FedHyper(FedAvg(), trainable=bad))


def test_same_seed_same_bits_whatever_the_node_ids_and_the_order_of_replies() -> None:
    results = [
        run(FedHyper(FedAdam(fraction_train=0.5, min_train_nodes=2), "g+sl", seed=5), clients=8, shuffle=i)
        for i in range(6)
    ]
    assert all(same_bits(results[0], other) for other in results[1:])
    other_seed = run(FedHyper(FedAdam(fraction_train=0.5, min_train_nodes=2), "g+sl", seed=6), clients=8)
    assert not same_bits(results[0], other_seed)


def test_other_nodes_every_round() -> None:
    grid = LocalGrid(quadratic_app(), 8)
    FedHyper(FedAvg(fraction_train=0.5, fraction_evaluate=0.0), seed=5).start(grid, initial(), num_rounds=4)
    asked: dict[int, set[int]] = {}
    for message in grid.sent:
        if message.metadata.message_type == "train":
            server_round = int(message.content["config"]["server-round"])
            asked.setdefault(server_round, set()).add(grid.partition(message.metadata.dst_node_id))
    assert all(len(nodes) == 4 for nodes in asked.values())
    assert len({frozenset(nodes) for nodes in asked.values()}) > 1


def test_the_global_random_generator_is_left_as_it_was() -> None:
    import random

    random.seed(1)
    expected = random.Random(1).random()
    run(FedHyper(FedAvg(fraction_train=0.5), seed=0))
    assert random.random() == expected


def test_nodes_that_do_not_answer_are_ordered_by_node_id_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedHyper(FedAvg(), "g", seed=0, nodes=4)
    with caplog.at_level("WARNING", logger="flwr"):
        run(strategy, clients=4, app=quadratic_app(answers=False))
    assert strategy.history[-1]["clients_used"] == 4
    assert "identify(app)" in caplog.text or not caplog.records  # flwr's logger may not propagate


def test_the_first_round_waits_for_every_node() -> None:
    class Late(LocalGrid):
        """One more node every time somebody looks."""

        seen = 0

        def get_node_ids(self) -> Iterable[int]:
            self.seen += 1
            return sorted(self.contexts)[: self.seen]

    grid = Late(quadratic_app(), 5)
    strategy = FedHyper(FedAvg(), "g", seed=0)
    strategy.start(grid, initial(), num_rounds=1)
    assert strategy.history[0]["clients_used"] == 5
    impatient = FedHyper(FedAvg(), "g", nodes=9, wait=0.3)
    impatient.start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=1)
    assert impatient.history[0]["clients_used"] == 3


@pytest.mark.parametrize("bad", [3, 5])
def test_rollback_returns_to_the_last_good_weights_and_forgets_the_optimizer(bad: int) -> None:
    """The loss explodes: back to where the round before began, at a third of the rate."""
    seen: list[tuple[np.ndarray[Any, Any], float, bool]] = []
    inner = FedAdam(fraction_evaluate=0.0)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        w = message.content["arrays"]["w"].numpy()
        if context.node_config["partition-id"] == 0:
            seen.append((w, float(message.content["config"]["local-lr"]), inner.m_t is None))
        metrics = {"num-examples": 1, "fedhyper.loss": 100.0 if t == bad else 1.0 / t}
        content = {"arrays": arrays(w=w - np.float32(0.1)), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    strategy = FedHyper(inner, Auto(voices=2))
    strategy.start(LocalGrid(app, 2), arrays(w=np.zeros(2, np.float32)), num_rounds=bad + 1)
    assert [record["rollback"] for record in strategy.history] == [False] * (bad - 1) + [True, False]
    np.testing.assert_array_equal(seen[bad][0], seen[bad - 2][0])  # starts where that round did
    assert seen[bad][1] < seen[bad - 1][1] / 3
    assert [fresh for _, _, fresh in seen] == [t in (0, bad) for t in range(bad + 1)]


@pytest.mark.parametrize("key", ["fedhyper.loss", "loss", "train_loss", "train-loss", None])
def test_the_guard_reads_the_loss_that_clients_report(key: str | None) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        metrics: dict[str, Any] = {"num-examples": 1, "accuracy": 0.5}
        if key is not None:
            metrics[key] = 50.0 if t == 2 else 1.0
        w = message.content["arrays"]["w"].numpy() - np.float32(0.1)
        return Message(RecordDict({"arrays": arrays(w=w), "metrics": MetricRecord(metrics)}), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), Auto(voices=2))
    strategy.start(LocalGrid(app, 2), arrays(w=np.zeros(2, np.float32)), num_rounds=3)
    assert [record["rollback"] for record in strategy.history] == [False, key is not None, False]


def test_nothing_usable_changes_nothing_and_five_times_in_a_row_stops() -> None:
    good = FedHyper(FedAdam(), "g+sl", seed=0)
    reference = run(good, rounds=2)

    def nan(reply: Message) -> Message:
        reply.content["arrays"]["fc.weight"] = Array(np.full((2, 4), np.nan, np.float32))
        return reply

    calls = {"n": 0}

    def nan_between(reply: Message) -> Message:  # rounds 2..5 are all bad, 1 and 6 are good
        calls["n"] += 1
        return nan(reply) if 6 < calls["n"] <= 30 else reply

    strategy = FedHyper(FedAdam(), "g+sl", seed=0)
    grid = LocalGrid(quadratic_app(), 6, spoil=dict.fromkeys(range(6), nan_between))
    # FedAdam's bias correction counts rounds, so the skipped ones show there and only there
    strategy.start(grid, initial(), num_rounds=6)
    assert [record["clients_used"] for record in strategy.history] == [6, 0, 0, 0, 0, 6]
    assert strategy.history[5]["local_lr"] == strategy.history[1]["local_lr"] == good.history[1]["local_lr"]
    assert strategy.state.local_lr == good.state.local_lr
    assert reference.keys() == strategy.layout.shapes.keys()

    with pytest.raises(TrainingStopped, match=r"5 rounds in a row .*non-finite") as caught:
        run(FedHyper(FedAvg()), rounds=9, spoil=dict.fromkeys(range(6), nan))
    assert "\n" not in str(caught.value)


def silent(reply: Message) -> list[Message]:
    return []


def failed(reply: Message) -> Message:
    return Message(Error(5, "the node\nhas left"), reply_to=reply)


@pytest.mark.parametrize("nobody", [silent, failed])
@pytest.mark.parametrize("schedule", ["auto", "g+sl"])
def test_a_round_in_which_nobody_answers_changes_nothing_but_its_number(schedule: str, nobody: Any) -> None:
    """All sampled nodes fail in round 5: the rates, the weights and the mean are those of a run without that round."""
    calls = {"n": 0}

    def in_round_5(reply: Message) -> Any:
        calls["n"] += 1
        return nobody(reply) if 24 < calls["n"] <= 30 else reply

    def unhurried(**grid: Any) -> tuple[FedHyper, ArrayRecord]:
        strategy = FedHyper(FedAvg(fraction_evaluate=0.0), schedule, seed=0, local_lr=0.02)
        return strategy, run(strategy, rounds=7 if grid else 6, **grid)

    disturbed, after = unhurried(spoil=dict.fromkeys(range(6), in_round_5))
    quiet, reference = unhurried()
    assert same_bits(after, reference)
    used = [row["clients_used"] for row in quiet.history]
    assert [row["clients_used"] for row in disturbed.history] == [*used[:4], 0, *used[4:]]
    assert used[3:] == [6, 6, 6]
    assert disturbed.state.plan == quiet.state.plan
    for name, array in quiet.state.now.weights.items():
        assert (disturbed.state.now.weights[name] == array).all()
        assert (disturbed.state.mean.weights[name] == quiet.state.mean.weights[name]).all()


def test_the_log_shows_the_rate_that_a_round_was_trained_at_and_whether_it_was_taken_back() -> None:
    """The loss of rounds 6 and 7 is far above all others: what was done before is undone."""
    calls = {"n": 0}

    def worse(reply: Message) -> Message:
        calls["n"] += 1
        metrics = reply.content["metrics"]
        metrics.update({key: 1e6 for key in metrics if key.endswith("loss") and 30 < calls["n"] <= 42})
        return reply

    grid = LocalGrid(quadratic_app(), 6, spoil=dict.fromkeys(range(6), worse))
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), "auto", seed=0, local_lr=0.02)
    logged = strategy.start(grid, initial(), num_rounds=9).train_metrics_clientapp
    rates: dict[int, set[float]] = {}
    for message in grid.sent:
        if message.metadata.message_type == "train":
            rates.setdefault(int(message.content["config"]["server-round"]), set()).add(message.content["config"]["lr"])
    for t, sent in rates.items():
        if len(sent) == 1:  # nobody tries rates out
            assert logged[t]["fedhyper.local-lr"] == pytest.approx(*sent)
    assert any(metrics.get("fedhyper.rollback") for metrics in logged.values())


def test_that_all_replies_are_nonsense_lowers_autos_rate() -> None:
    def nan(reply: Message) -> Message:
        reply.content["arrays"]["fc.weight"] = Array(np.full((2, 4), np.nan, np.float32))
        return reply

    strategy = FedHyper(FedAvg(), "auto", local_lr=1e-4)
    run(strategy, rounds=2, spoil=dict.fromkeys(range(6), nan))
    assert strategy.state.local_lr < strategy.history[0]["local_lr"]


def test_a_reply_refused_for_anything_else_says_nothing_about_the_rate() -> None:
    def like(change: Any, rounds: int = 2) -> float:
        def spoil(reply: Message) -> Message:
            change(reply.content)
            return reply

        strategy = FedHyper(FedAvg(), "auto", local_lr=1e-4)
        run(strategy, rounds=rounds, spoil=dict.fromkeys(range(6), spoil))
        assert [row["clients_used"] for row in strategy.history] == [0] * rounds
        return strategy.state.local_lr

    assert like(lambda content: content["metrics"].update({"num-examples": 0})) == 1e-4
    assert like(lambda content: content["metrics"].update({"fedhyper.round": 7})) == 1e-4
    assert like(lambda content: content["arrays"].pop("fc.weight")) == 1e-4
    wide = Array(np.full((2, 4), 1e200))
    assert like(lambda content: content["arrays"].update({"fc.weight": wide})) < 1e-4


def test_what_ends_a_run_without_replies_names_the_nodes_errors() -> None:
    with pytest.raises(TrainingStopped, match=r"3 rounds in a row \(node \d+: the node\?has left; node"):
        run(FedHyper(FedAvg(), patience=3), rounds=9, spoil=dict.fromkeys(range(6), failed))
    with pytest.raises(TrainingStopped, match="nobody answered"):
        run(FedHyper(FedAvg(), patience=3), rounds=9, spoil=dict.fromkeys(range(6), silent))


def test_a_second_start_is_a_new_run() -> None:
    for inner in (FedAvg, FedAdam, lambda: FedAvgM(server_momentum=0.9)):
        strategy = FedHyper(inner(), "auto", seed=1)
        first = run(strategy, rounds=5)
        assert same_bits(run(strategy, rounds=5), first)
        assert [row["round"] for row in strategy.history] == [1, 2, 3, 4, 5]
        other = strategy.start(LocalGrid(quadratic_app(), 6), arrays(w=np.ones(3, np.float32)), num_rounds=1)
        assert list(other.arrays) == ["w"]


def test_a_step_that_overflows_the_models_type_is_not_made() -> None:
    """float16 ends at 65504; the loop works in float32, where w − 3 · Δ = 40000 + 3 · 20000 is a number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy() + np.float16(20000)
        return Message(RecordDict({"a": arrays(w=w), "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), FedHyperG(lr=3.0, bound=1.0))
    start = arrays(w=np.full(2, 40000, np.float16))
    result = strategy.start(LocalGrid(app, 2), start, num_rounds=2)
    assert (numbers(result.arrays)["w"] == 40000).all()
    assert [row["clients_used"] for row in strategy.history] == [0, 0]


@pytest.mark.parametrize("vote", ["fedhyper.vote", "fedhyper.votes"])
def test_where_most_clients_climbed_the_mean_over_the_steps_is_the_loss(vote: str) -> None:
    row = {"fedhyper.loss": 2.0, "fedhyper.train-loss": 1.0}
    assert Losses().values([row] * 3) == (2.0,) * 3
    assert Losses().values([row | {vote: 1}, row, row]) == (2.0,) * 3
    climbed = Losses()
    assert climbed.values([row | {vote: 1}, row | {vote: 1}, row]) == (1.0,) * 3
    assert climbed.values([row]) == (1.0,)  # and stays it
    assert Losses("fedhyper.loss").values([row | {vote: 1}]) == (2.0,)
    assert Losses().values([{"fedhyper.loss": 2.0, vote: 1}]) == (2.0,)


@pytest.mark.parametrize("reporting", [1, 2, 3])
def test_the_loss_is_found_in_the_first_round_in_which_more_than_half_report_one(reporting: int) -> None:
    """Nobody reports a loss in rounds 1 and 3, ``reporting`` of 3 clients do from then on; round 5 explodes."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        metrics: dict[str, Any] = {"num-examples": 1}
        if t in (2, 4, 5) and int(context.node_config["partition-id"]) < reporting:
            metrics["fedhyper.loss"] = 50.0 if t == 5 else 1.0
        w = message.content["arrays"]["w"].numpy() - np.float32(0.1)
        return Message(RecordDict({"arrays": arrays(w=w), "metrics": MetricRecord(metrics)}), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), Auto(voices=2))
    strategy.start(LocalGrid(app, 3), arrays(w=np.zeros(2, np.float32)), num_rounds=5)
    found = reporting > 1
    assert [row["train_loss"] for row in strategy.history] == ([None, 1.0, None, 1.0, 50.0] if found else [None] * 5)
    assert [row["rollback"] for row in strategy.history] == [False] * 4 + [found]


class Hidden(FedAvg):
    """As under secure aggregation: replies are masked, only their sum means anything."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        opened = []
        for message in replies:
            masked = message.content["arrays"]
            plain = ArrayRecord({k: Array(np.frombuffer(a.numpy().tobytes()[::-1], "f4")) for k, a in masked.items()})
            opened.append(
                Message(RecordDict({"arrays": plain, "metrics": message.content["metrics"]}), reply_to=message)
            )
        return super().aggregate_train(server_round, opened)


@pytest.mark.parametrize("schedule", ["auto", "g", "sl", "g+sl", "constant"])
def test_every_schedule_works_on_the_aggregate_alone(schedule: str) -> None:
    """Masked replies (their bytes reversed, shapes gone) against open ones: the same rates, the same model."""

    def make_app(masked: bool) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            w = message.content["arrays"]["w"].numpy()
            lr = np.float32(message.content["config"]["local-lr"])
            new = (w - lr * (w - np.arange(8, dtype=np.float32) - partition)).astype(np.float32)
            payload = np.frombuffer(new.tobytes()[::-1], np.uint8) if masked else new
            metrics = MetricRecord({"num-examples": 3 + partition, "fedhyper.loss": float(((w - 4) ** 2).sum())})
            return Message(RecordDict({"arrays": arrays(w=payload), "metrics": metrics}), reply_to=message)

        return app

    start = arrays(w=np.zeros(8, np.float32))
    hidden = FedHyper(Hidden(fraction_evaluate=0.0), schedule, aggregate_only=True, nodes=4)
    result = hidden.start(LocalGrid(make_app(True), 4), start, num_rounds=4)
    # what is masked cannot be compared by rates, nor by length: both keep the rate and the weights that were given
    plan = NoStart(local_lr=0.01) if schedule == "auto" else schedule
    seen = FedHyper(FedAvg(fraction_evaluate=0.0), plan, nodes=4, norm_cap=0.0)
    expected = seen.start(LocalGrid(make_app(False), 4), start, num_rounds=4)
    np.testing.assert_allclose(numbers(result.arrays)["w"], numbers(expected.arrays)["w"], rtol=1e-6)
    for a, b in zip(hidden.history, seen.history, strict=True):
        assert a["global_lr"] == pytest.approx(b["global_lr"], rel=1e-6)
        assert a["local_lr"] == pytest.approx(b["local_lr"], rel=1e-6)
        assert a["rollback"] == b["rollback"]


def test_cl_sends_its_rule_and_the_last_aggregate() -> None:
    def run_cl(send: Any) -> list[Message]:
        grid = LocalGrid(quadratic_app(), 2)
        rules = (FedHyperG(), FedHyperCL(lr=0.02, local_steps=1, bound=4.0))
        FedHyper(FedAvg(fraction_evaluate=0.0), rules, send_delta=send).start(grid, initial(), num_rounds=2)
        return grid.sent

    full, half, cached = run_cl("full"), run_cl("half"), run_cl("cached")
    assert all("fedhyper.delta" not in message.content["config"] for message in (*full[:2], *cached))
    for message in full:
        assert list(message.content) == ["arrays", "config"]  # Flower's own mods put up with no other record
        rule = {key: message.content["config"][f"fedhyper.client.{key}"] for key in ("lr", "bound", "global_term")}
        assert rule == {"lr": 0.02, "bound": 4.0, "global_term": "add"}
        assert message.content["config"]["local-lr"] == 0.02

    def unpacked(message: Message, dtype: Any) -> dict[str, Any]:
        config, shapes = message.content["config"], numbers(message.content["arrays"])
        flat, found = np.frombuffer(config["fedhyper.delta"], dtype), {}
        for name in config["fedhyper.delta-names"]:
            found[name], flat = flat[: shapes[name].size].reshape(shapes[name].shape), flat[shapes[name].size :]
        assert flat.size == 0
        return found

    delta, halved = unpacked(full[2], np.float32), unpacked(half[2], np.float16)
    before, after = numbers(full[0].content["arrays"]), numbers(full[2].content["arrays"])
    assert sorted(delta) == ["bn.weight", "conv.weight", "fc.weight"]
    for name, piece in delta.items():
        np.testing.assert_allclose(piece, before[name] - after[name], rtol=1e-5, atol=1e-7)  # α = 1 in the first round
        np.testing.assert_allclose(halved[name], piece, rtol=1e-3, atol=1e-6)


def test_plans_and_baselines_can_be_given() -> None:
    decay = FedHyper(FedAvg(), Pair(local_rule=Decay(lr=0.1, factor=0.5)))
    run(decay, rounds=3)
    assert [record["local_lr"] for record in decay.history] == [0.1, 0.05, 0.025]
    exp = FedHyper(FedAvg(), Pair(global_rule=FedExP(epsilon=1e-9)))
    run(exp, rounds=2)
    assert exp.history[0]["global_lr"] >= 1.0
    assert isinstance(FedHyper(FedAvg(), Auto(gain=0.3)).schedule, Auto)


def test_fedexp_by_hand() -> None:
    """Δ_m = 1 and 3 with weights 1 and 1: mean |Δ_m|² = 5, |Δ|² = 4, α = 5/8 → 1; with 0 and 4: 8/(2·4) = 1;
    with −1 and 3: 5/(2·1) = 2.5."""
    pairs = [(1.0, 3.0), (0.0, 4.0), (-1.0, 3.0)]
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        move = np.float32(pairs[t - 1][int(context.node_config["partition-id"])])
        w = message.content["arrays"]["w"].numpy() - move
        return Message(RecordDict({"a": arrays(w=w), "m": MetricRecord({"num-examples": 2})}), reply_to=message)

    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), Pair(global_rule=FedExP(epsilon=1e-12)), norm_cap=0.0)
    strategy.start(LocalGrid(app, 2), arrays(w=np.zeros(1, np.float32)), num_rounds=3)
    assert [record["global_lr"] for record in strategy.history] == pytest.approx([1.0, 1.0, 2.5])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schedule": "gg"}, "schedule must be one of"),
        ({"schedule": 3}, "schedule must be one of"),
        ({"schedule": (Decay(),)}, "use Pair"),
        ({"send_delta": "quarter"}, "send_delta"),
        ({"norm_cap": -0.5}, "norm_cap"),
    ],
)
def test_bad_settings_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        FedHyper(FedAvg(), **settings)


def test_bad_rates_are_refused_at_once() -> None:
    for settings in ({"local_lr": -1.0}, {"global_lr": float("nan")}):
        with pytest.raises(ValueError, match="lr"):
            FedHyper(FedAvg(), "g+sl", **settings)


def test_rules_by_object_bring_their_own_rates() -> None:
    strategy = FedHyper(FedAvg(), (FedHyperG(lr=2.0), FedHyperSL(lr=0.5)))
    run(strategy, rounds=1)
    assert strategy.history[0]["global_lr"] == 2.0
    assert strategy.history[0]["local_lr"] == 0.5


def test_the_server_needs_no_torch() -> None:
    code = (
        "import sys; from fedhyper.flower import FedHyper; from flwr.serverapp.strategy import FedAvg; "
        "FedHyper(FedAvg()); assert 'torch' not in sys.modules and 'fedhyper.sim' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_summary_and_evaluation_are_the_inner_strategys() -> None:
    strategy = FedHyper(FedAvg(fraction_evaluate=0.5, min_evaluate_nodes=1), "g", seed=0)
    result = strategy.start(
        LocalGrid(quadratic_app(), 4),
        initial(),
        num_rounds=2,
        evaluate_fn=lambda server_round, record: MetricRecord({"round": server_round}),
    )
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2]
    assert {t: m["round"] for t, m in result.evaluate_metrics_serverapp.items()} == {0: 0, 1: 1, 2: 2}
    assert result.train_metrics_clientapp[2]["fedhyper.clients-used"] == 4


def test_an_inner_strategy_that_gives_up_leaves_the_round_out() -> None:
    class Nothing(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return (None, None) if server_round == 2 else super().aggregate_train(server_round, replies)

    strategy = FedHyper(Nothing(), "g", seed=0)
    run(strategy, rounds=3)
    assert [record["clients_used"] for record in strategy.history] == [6, 0, 6]


def test_grid_and_config_types_are_flowers() -> None:
    assert issubclass(LocalGrid, Grid)
    assert isinstance(config(), ConfigRecord)
