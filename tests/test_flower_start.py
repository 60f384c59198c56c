"""auto's start in Flower: stock clients train once, so the first rounds spread rates over the nodes."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Bulyan, FedAvg

from fedhyper import Auto
from fedhyper.flower import FedHyper, identify
from fedhyper.flower.run_log import shown
from tests.flower_support import LocalGrid, arrays, numbers, same_bits
from tests.test_flower_resume import DyingGrid, Killed

ROOT10 = 10**0.5


def logistic_app(reports: str = "stock", shift: float = 0.0, deaf: bool = False, limit: float = math.inf) -> ClientApp:
    """Logistic regression on ten numbers, 20 steps of one example each. Rates around 0.3 to 3 are good, 0.01 is slow.

    reports  "stock": the mean training loss; "ours": that, and the loss before training; "nothing"
    deaf     trains with a rate of its own
    limit    the rate above which nothing but NaN comes out
    """
    app = identify(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        x = rng.standard_normal((20, 10))
        y = np.sign(x @ np.linspace(-2, 2, 10) + 0.5 * rng.standard_normal(20))
        lr = 0.1 if deaf else float(message.content["config"]["lr"])
        w, losses = message.content["arrays"]["w"].numpy().astype(float), []
        before = float(np.logaddexp(0, -y * (x @ w)).mean())
        for row, label in zip(x, y, strict=True):
            margin = label * float(row @ w)
            losses.append(float(np.logaddexp(0, -margin)))
            w = w + lr * label * row * math.exp(-np.logaddexp(0, margin))
        w = w if lr <= limit else w * math.nan
        metrics: dict[str, Any] = {"num-examples": 20}
        if reports != "nothing":
            metrics["train_loss"] = float(np.mean(losses)) - shift
        if reports == "ours":
            metrics["fedhyper.loss"] = before - shift
        content = {"arrays": arrays(w=w.astype(np.float32)), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return app


def start(app: ClientApp, clients: int = 20, rounds: int = 3, **settings: Any) -> tuple[FedHyper, LocalGrid, Any]:
    grid = LocalGrid(app, clients, spoil=settings.pop("spoil", None))
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), seed=0, **settings)
    result = strategy.start(grid, arrays(w=np.zeros(10, np.float32)), num_rounds=rounds)
    return strategy, grid, result.arrays


def sent(grid: LocalGrid) -> dict[int, list[float]]:
    """The rates that went out, by round."""
    rates: dict[int, list[float]] = {}
    for message in grid.sent:
        if message.metadata.message_type == "train":
            config = message.content["config"]
            assert config["lr"] == config["local-lr"]
            rates.setdefault(int(config["server-round"]), []).append(float(config["lr"]))
    return rates


@pytest.mark.parametrize("reports", ["stock", "ours"])
def test_every_node_its_own_rate_first_and_then_all_the_same_good_one(reports: str) -> None:
    strategy, grid, _ = start(logistic_app(reports))
    first, *others = sent(grid).values()
    assert len(set(first)) == 13
    assert min(first) == pytest.approx(1e-5)
    assert max(first) == pytest.approx(10)
    assert all(len(set(rates)) == 1 for rates in others)
    assert 0.1 / 1.01 <= others[0][0] <= ROOT10 * 1.3  # a rung around 0.3 to 1, and a first step of following
    assert 0 < strategy.history[0]["clients_used"] < 20
    assert [row["clients_used"] for row in strategy.history[1:]] == [20, 20]


def weights_sent(grid: LocalGrid) -> dict[int, Any]:
    """The weights that went out, by round."""
    trained = [m.content for m in grid.sent if m.metadata.message_type == "train"]
    return {int(content["config"]["server-round"]): numbers(content["arrays"])["w"] for content in trained}


@pytest.mark.parametrize("clients", [2, 3, 5])
@pytest.mark.parametrize("reports", ["stock", "ours"])
def test_with_few_nodes_a_round_the_weights_wait_while_rates_are_tried(reports: str, clients: int) -> None:
    strategy, grid, _ = start(logistic_app(reports), clients=clients, rounds=50)
    waited = [row["round"] for row in strategy.history if row["clients_used"] == 0]
    assert waited == list(range(1, len(waited) + 1))
    assert 1 <= len(waited) <= {2: 5, 3: 4, 5: 3}[clients]
    sent_weights = weights_sent(grid)
    assert all((sent_weights[t] == sent_weights[1]).all() for t in range(2, len(waited) + 2))
    assert all(len(set(sent(grid)[t])) == 1 for t in range(len(waited) + 2, 51))
    tried = [row for row in strategy.history if row["round"] in waited]
    assert all(row["local_lr_min"] == pytest.approx(min(sent(grid)[row["round"]])) for row in tried)
    assert 0.03 < strategy.state.local_lr < 10


def test_at_most_a_fifth_of_a_run_is_spent_on_waiting() -> None:
    for rounds in (3, 5, 9, 10, 14, 15, 40):
        strategy, _, _ = start(logistic_app("ours"), clients=2, rounds=rounds)
        waited = sum(row["clients_used"] == 0 for row in strategy.history)
        assert waited <= max(rounds // 5 - 1, 0) + 1  # and the round that ends it, if its own rate was not the best


def test_the_last_round_of_trying_makes_a_step() -> None:
    """A plan that waits for so many rounds and no longer, whatever they have told."""
    for voices in (2, 3):
        settings: Any = {"schedule": Auto(voices=voices), "clients": 2, "rounds": 50}
        strategy, grid, _ = start(logistic_app("ours"), **settings)
        assert [row["clients_used"] > 0 for row in strategy.history[: voices + 1]] == [False] * (voices - 1) + [
            True
        ] * 2
        assert len(set(sent(grid)[voices])) == 2
        assert len(set(sent(grid)[voices + 1])) == 1


def test_a_client_counts_for_the_rate_it_says_it_used_if_that_is_one_of_those_tried() -> None:
    """Four of ten climbed by themselves, to 0.316."""
    honest = logistic_app()

    def app(message: Message, context: Context) -> Message:
        climbs = context.node_config["partition-id"] in range(4) and "fedhyper.climb" in message.content["config"]
        if climbs:
            message.content["config"]["lr"] = 0.316228
        reply = honest(message, context)
        reply.content["metrics"].update({"fedhyper.lr": 0.316228} if climbs else {})
        return reply

    for order in range(4):
        grid = LocalGrid(app, 10, shuffle=order)  # type: ignore[arg-type]
        strategy = FedHyper(FedAvg(fraction_evaluate=0.0), seed=0)
        strategy.start(grid, arrays(w=np.zeros(10, np.float32)), num_rounds=10)
        assert 0.03 < strategy.state.local_lr < 10


@pytest.mark.parametrize("lie", [1e9, 1e-9, math.inf])
def test_a_client_that_says_it_used_another_rate_than_those_tried_counts_for_the_one_it_was_sent(lie: float) -> None:
    def says(reply: Message) -> Message:
        reply.content["metrics"]["fedhyper.lr"] = lie
        return reply

    honest, _, _ = start(logistic_app(), clients=10)
    strategy, _, _ = start(logistic_app(), clients=10, spoil={4: says})
    assert strategy.state.plan == honest.state.plan


def test_a_strategy_that_gives_up_on_the_few_replies_near_the_best_loses_a_step_and_not_the_rate() -> None:
    strategy = FedHyper(Bulyan(num_malicious_nodes=1, fraction_evaluate=0.0), seed=0)
    strategy.start(LocalGrid(logistic_app(), 20), arrays(w=np.zeros(10, np.float32)), num_rounds=8)
    used = [row["clients_used"] for row in strategy.history]
    assert used == [0, *[20] * 7]
    assert 0.03 < strategy.state.local_lr < 10


@pytest.mark.parametrize("reports", ["stock", "ours"])
def test_three_nodes_a_round_find_a_good_rate(reports: str) -> None:
    assert 0.03 < start(logistic_app(reports), clients=3, rounds=12)[0].state.local_lr < 10


def test_in_a_short_run_updates_at_lower_rates_are_stretched_to_the_best_one() -> None:
    """Every client moves by its rate; 1 is best, and used with 0.1."""
    app = identify(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rate, part = float(message.content["config"]["lr"]), int(context.node_config["partition-id"])
        w = message.content["arrays"]["w"].numpy() - np.float32(rate)
        metrics = MetricRecord({"num-examples": 10 + part, "train_loss": 3.0 - rate if rate < 2 else 3.5})
        return Message(RecordDict({"arrays": arrays(w=w), "metrics": metrics}), reply_to=message)

    def first_step(rounds: int) -> Any:
        strategy, grid = FedHyper(FedAvg(fraction_evaluate=0.0), seed=0), LocalGrid(app, 10)
        result = strategy.start(grid, arrays(w=np.zeros(10, np.float32)), num_rounds=rounds)
        assert strategy.history[0]["clients_used"] == 4
        after = [m.content["arrays"] for m in grid.sent if m.content.get("config", {}).get("server-round") == 2]
        return numbers(after[0] if after else result.arrays)["w"]

    np.testing.assert_allclose(first_step(rounds=1), -1.0, rtol=1e-6)
    np.testing.assert_allclose(first_step(rounds=5), -1.0, rtol=1e-6)
    assert (np.abs(first_step(rounds=6) + 0.55) < 0.1).all()  # by weights of 10 to 19


def test_two_nodes_that_say_nothing_of_their_loss_keep_the_hint() -> None:
    _, grid, _ = start(logistic_app("nothing"), clients=2, local_lr=0.2)
    assert sent(grid)[2] == [0.2, 0.2]


def test_without_any_loss_the_hint_is_used_from_the_second_round_on() -> None:
    strategy, grid, _ = start(logistic_app("nothing"), local_lr=0.2)
    assert sent(grid)[2] == [0.2] * 20
    row = strategy.history[0]  # the three lowest, which did least, are used
    assert [row["clients_used"], row["local_lr_min"], row["local_lr_max"]] == pytest.approx([3, 1e-5, 1e-4])
    assert [row["clients_used"] for row in strategy.history[1:]] == [20, 20]


def far(reply: Message) -> Message:
    reply.content["arrays"] = arrays(w=np.full(10, -1e6, np.float32))
    return reply


def alone_in_reporting(reply: Message) -> Message:
    reply.content["metrics"].update({"fedhyper.train-loss": -1e9, "fedhyper.loss": 1.0})
    return reply


@pytest.mark.parametrize("spoil", [far, alone_in_reporting])
@pytest.mark.parametrize("clients", [3, 10])
def test_where_nobody_reports_a_loss_no_client_decides_the_first_round(clients: int, spoil: Any) -> None:
    for hostile in range(clients):
        strategy, grid, _ = start(logistic_app("nothing"), clients, rounds=1, local_lr=0.2, spoil={hostile: spoil})
        assert strategy.state.local_lr == 0.2
        honest = [length for node, length in moved_by(grid).items() if grid.partition(node) != hostile]
        assert np.abs(strategy.state.now.weights["w"]).max() <= sorted(honest)[:3][-1]


def moved_by(grid: LocalGrid) -> dict[int, float]:
    """How far each node's own training moves the weights it was sent."""
    asked = [message for message in grid.sent if message.metadata.message_type == "train"]
    replies = {m.metadata.dst_node_id: grid.app(m, grid.contexts[m.metadata.dst_node_id]) for m in asked}
    return {node: float(np.abs(numbers(reply.content["arrays"])["w"]).max()) for node, reply in replies.items()}


def test_masked_replies_are_not_spread() -> None:
    _, grid, _ = start(logistic_app(), aggregate_only=True, local_lr=0.2)
    assert sent(grid)[1] == [0.2] * 20


@pytest.mark.parametrize("lie", [math.nan, 1e9, -1e9])
@pytest.mark.parametrize("liar", [0, 7, 13, 19])
def test_one_liar_moves_the_rate_by_two_rungs_at_most(lie: float, liar: int) -> None:
    def spoil(reply: Message) -> Message:
        reply.content["metrics"]["train_loss"] = lie
        return reply

    honest = start(logistic_app(), rounds=1, clients=26)[0].state.local_lr
    found = start(logistic_app(), rounds=1, clients=26, spoil={liar: spoil})[0].state.local_lr
    assert abs(math.log(found / honest)) <= 2 * math.log(ROOT10) * 1.01


@pytest.mark.parametrize("reports", ["stock", "ours"])
@pytest.mark.parametrize("clients", [5, 20])
@pytest.mark.parametrize("shift", [10.0, math.log(2)])  # below 0, and a first loss of 0
def test_a_loss_may_be_shifted(shift: float, clients: int, reports: str) -> None:
    plain, grid, result = start(logistic_app(reports), clients=clients, rounds=6)
    moved, other, shifted = start(logistic_app(reports, shift), clients=clients, rounds=6)
    assert list(sent(other).values()) == [pytest.approx(row, rel=1e-9) for row in sent(grid).values()]
    assert [row["clients_used"] for row in moved.history] == [row["clients_used"] for row in plain.history]
    np.testing.assert_allclose(numbers(shifted)["w"], numbers(result)["w"], rtol=1e-6)


@pytest.mark.parametrize(("clients", "waits"), [(2, 4), (3, 4), (5, 4), (10, 2)])
def test_rates_that_clients_diverge_at_are_not_tried_again(clients: int, waits: int) -> None:
    strategy, grid, _ = start(logistic_app("ours", limit=0.05), clients=clients, rounds=50)
    waited = [row["round"] for row in strategy.history if row["clients_used"] == 0 and row["round"] < 11]
    assert len(waited) <= waits
    high = [rate for t in waited for rate in sent(grid)[t] if rate > 0.05]
    assert len(high) - len(set(high)) <= (0 if clients < 8 else 3)  # of ten, three of the first round's are given twice
    assert 0.003 < strategy.history[len(waited) + 1]["local_lr"] < 0.05


@pytest.mark.parametrize("clients", [10, 13])  # of 13 each is alone at its rung, the highest, too
def test_a_client_that_says_it_diverged_moves_the_rate_by_a_rung_at_most(clients: int) -> None:
    def nan(reply: Message) -> Message:
        reply.content["arrays"] = arrays(w=np.full(10, math.nan, np.float32))
        return reply

    for liar in range(clients):
        spoilt = [{liar: nan}, {liar: lambda reply: list[Message]()}]
        found = [start(logistic_app(), clients, rounds=1, spoil=one)[0].state.local_lr for one in spoilt]
        assert abs(math.log(found[0] / found[1])) <= math.log(ROOT10) * 1.01


def test_killed_in_the_middle_of_the_start_and_resumed_equals_never_stopped(tmp_path: Path) -> None:
    def make(path: Path | None) -> FedHyper:
        return FedHyper(FedAvg(fraction_evaluate=0.0), seed=4, checkpoint=path)

    begin = arrays(w=np.zeros(10, np.float32))
    whole = make(None)
    reference = whole.start(LocalGrid(logistic_app(), 4), begin, num_rounds=15)
    assert whole.history[0]["clients_used"] == 0  # still trying in round 2
    for dies_at in (2, 3, 4):
        path = tmp_path / str(dies_at)
        with pytest.raises(Killed):
            make(path).start(DyingGrid(logistic_app(), 4, dies_at=dies_at, after=True), begin, num_rounds=15)
        again = make(path)
        result = again.start(LocalGrid(logistic_app(), 4, shuffle=dies_at), begin, num_rounds=15, resume=True)
        assert same_bits(result.arrays, reference.arrays)
        assert again.state.plan == whole.state.plan


def test_one_client_that_says_nonsense_of_its_rate_takes_it_out_of_no_log() -> None:
    def nan(reply: Message) -> Message:
        reply.content["metrics"]["fedhyper.lr"] = math.nan
        return reply

    strategy, grid, _ = start(logistic_app(), clients=10, rounds=4, spoil={3: nan})
    assert [row["local_lr"] for row in strategy.history[1:]] == [sent(grid)[t][0] for t in (2, 3, 4)]


def test_that_clients_use_a_rate_of_their_own_is_known_after_a_resume(tmp_path: Path) -> None:
    """One that says so is logged; that the others do not hear stays known."""

    def says(reply: Message) -> Message:
        reply.content["metrics"]["fedhyper.lr"] = 0.05
        return reply

    def make(path: Path | None) -> FedHyper:
        return FedHyper(FedAvg(fraction_evaluate=0.0), seed=4, checkpoint=path)

    def grid() -> LocalGrid:
        return LocalGrid(logistic_app(deaf=True), 10, spoil={3: says})

    begin, path = arrays(w=np.zeros(10, np.float32)), tmp_path / "run.ckpt"
    whole = make(None)
    whole.start(grid(), begin, num_rounds=4)
    make(path).start(grid(), begin, num_rounds=1)
    again = make(path)
    again.start(grid(), begin, num_rounds=4, resume=True)
    assert [row["local_lr"] for row in again.history] == [row["local_lr"] for row in whole.history]


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("clients", [3, 5, 10, 20])
@pytest.mark.parametrize("deaf", [False, True])
def test_clients_that_do_not_follow_the_rate_are_named_once_and_all_used(deaf: bool, clients: int) -> None:
    heard = Heard()
    logging.getLogger("flwr").addHandler(heard)
    try:
        strategy, grid, _ = start(logistic_app(deaf=deaf), clients=clients, rounds=4, local_lr=0.2)
    finally:
        logging.getLogger("flwr").removeHandler(heard)
    warned = [line for line in heard.lines if "do not seem to use the rate" in line]
    assert len(warned) == deaf
    if deaf:
        assert "'lr'" in warned[0]
        assert [row["clients_used"] for row in strategy.history] == [clients] * 4
        assert sent(grid)[2] == [0.2] * clients
    # a rate that nobody uses is not logged
    assert [row["local_lr"] is None for row in strategy.history] == [deaf] * 4
    assert ["fedhyper.local-lr" in shown(row) for row in strategy.history] == [not deaf] * 4


@pytest.mark.parametrize("length", [3e-5, 1e6])  # as short as at the lowest rate, or longer than at any
@pytest.mark.parametrize("clients", [3, 4, 5, 8, 9])
def test_one_client_cannot_say_that_the_rate_has_no_effect(clients: int, length: float) -> None:
    def spoil(reply: Message) -> Message:
        reply.content["arrays"] = arrays(w=np.full(10, length, np.float32))
        return reply

    for hostile in range(clients):
        strategy, _, _ = start(logistic_app(), clients=clients, rounds=1, spoil={hostile: spoil})
        assert strategy.history[0]["local_lr"] is not None


@pytest.mark.parametrize(
    ("clients", "rounds", "words"), [(2, 9, ""), (3, 3, "3 clients a round need more than 3"), (10, 3, "")]
)
def test_too_few_rounds_or_clients_are_named_once(clients: int, rounds: int, words: str) -> None:
    heard = Heard()
    logging.getLogger("flwr").addHandler(heard)
    try:
        start(logistic_app(), clients=clients, rounds=rounds)
    finally:
        logging.getLogger("flwr").removeHandler(heard)
    lines = [line for line in heard.lines if "climbing_mod" in line]
    assert len(lines) == bool(words)
    assert all(words in line for line in lines)


def test_a_round_in_which_rates_are_tried_out_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's own line is "Received 2 results" of ten, which reads like eight failures."""
    with caplog.at_level(logging.INFO, "flwr"):
        strategy, _, _ = start(logistic_app(), clients=10, rounds=3)
    lines = [record.getMessage() for record in caplog.records if "tried rates" in record.getMessage()]
    assert len(lines) == 1
    assert "10 clients tried rates from 1e-05 to 10" in lines[0]
    assert f"the {strategy.history[0]['clients_used']} nearest the best" in lines[0]
    assert f"the next round's rate is {strategy.history[1]['local_lr']:.3g}" in lines[0]
