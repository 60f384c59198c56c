"""Apps in the shape of Flower's examples, with the two lines: never more than a point under plain FedAvg as shipped."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedhyper.automatic.ladder import RUNGS
from fedhyper.flower import FedHyper, climbing_mod, mod
from fedhyper.flower.records.layout import Layout
from fedhyper.sim.rng import generator
from tests.flower_apps import task
from tests.flower_apps.suite import ADAMW, APPS, KERAS, PYTORCH, SKLEARN, run
from tests.flower_support import LocalGrid


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    random.seed(0)
    yield
    torch.set_num_threads(before)


# name → the mod that its clients get, and what the wrapped app reaches at least; docs/flower.md has what was measured
CASES = {
    "pytorch": ((), 0.85),
    "adamw": ((mod,), 0.85),
    "sklearn": ((), 0.9),
    "keras": ((), 0.85),
    "peft": ((mod,), 0.8),
}


@pytest.mark.parametrize("name", CASES)
def test_the_two_lines_cost_nothing_and_gain(name: str) -> None:
    app, (mods, least) = APPS[name], CASES[name]
    plain, _ = run(app, app.strategy(), LocalGrid(app.client(), 10))
    ours, _ = run(app, FedHyper(app.strategy()), LocalGrid(app.client(*mods), 10))
    assert ours >= plain - 0.01
    assert ours > least


@pytest.mark.parametrize("name", ["adamw", "sklearn", "peft"])
def test_without_the_mod_clients_that_ignore_the_rate_are_named_and_lose_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = replace(APPS[name], rounds=3)  # as shipped
    plain, _ = run(app, app.strategy(), LocalGrid(app.client(), 10))
    with caplog.at_level(logging.WARNING, "flwr"):
        ours, _ = run(app, FedHyper(app.strategy()), LocalGrid(app.client(), 10))
    assert ours >= plain - 0.01
    assert sum("do not seem to use the rate" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("order", range(3))
def test_three_rounds_are_at_least_as_good_as_plain(order: int) -> None:
    app = replace(PYTORCH, rounds=3)
    plain, _ = run(app, FedAvg(fraction_evaluate=0.0), LocalGrid(app.client(), 10, shuffle=order))
    ours, _ = run(app, FedHyper(FedAvg(fraction_evaluate=0.0)), LocalGrid(app.client(), 10, shuffle=order))
    assert ours >= plain - 0.01


@pytest.mark.parametrize("draw", range(3))
def test_a_fifth_of_the_nodes_a_round_is_enough(draw: int) -> None:
    """50 nodes with 27 images each, ten of them a round, others each time: the rate does not collapse."""
    app = replace(PYTORCH, rounds=30)

    def inner() -> FedAvg:
        return FedAvg(fraction_train=0.2, fraction_evaluate=0.0)

    plain, _ = run(app, inner(), LocalGrid(app.client(), 50, shuffle=draw))
    strategy = FedHyper(inner(), seed=draw)
    ours, _ = run(app, strategy, LocalGrid(app.client(), 50, shuffle=draw))
    assert ours >= plain - 0.01
    assert ours > 0.6  # two steps a round at the shipped 0.01 lead nowhere
    assert not any(record["rollback"] for record in strategy.history)


def test_a_loss_may_be_negative() -> None:
    """A likelihood, an ELBO: five less for every client changes no decision."""

    def shifted(message: Message, context: Context) -> Message:
        reply = PYTORCH.train(message, context)
        reply.content["metrics"]["train_loss"] -= 5
        return reply

    strategies = [FedHyper(FedAvg(fraction_evaluate=0.0), seed=0) for _ in range(2)]
    apps = (PYTORCH, replace(PYTORCH, train=shifted))
    found = [run(app, one, LocalGrid(app.client(), 10))[0] for app, one in zip(apps, strategies, strict=True)]
    assert found[0] == found[1] > 0.85
    assert strategies[0].history[-1]["local_lr"] == strategies[1].history[-1]["local_lr"]


@pytest.mark.parametrize("nodes", [1, 2, 10])
def test_clients_that_climb_need_no_second_round_and_no_company(nodes: int, caplog: pytest.LogCaptureFixture) -> None:
    app = replace(PYTORCH, rounds=3, rate=1e-6)
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = FedHyper(inner)
    ours, _ = run(app, strategy, LocalGrid(app.client(climbing_mod), nodes))
    assert ours > 0.7
    assert "climbing_mod" not in caplog.text  # nobody is sent to what they have
    assert strategy.history[0]["clients_used"] == nodes
    assert 0.03 < strategy.history[1]["local_lr"] < 3 if nodes == 10 else strategy.history[1]["local_lr"] > 1e-3


def masking(message: Message, context: Context, call_next: Any) -> Message:
    """A mod outside the others: every number that leaves a node has noise on it, which the sum of all is free of."""
    reply, t = call_next(message, context), message.content["config"]["server-round"]
    me, nodes = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))

    def masked(name: str, value: Any) -> np.ndarray[Any, Any]:
        mine, other = (generator(7, "mask", t, name, i % nodes) for i in (me, me + 1))
        return np.asarray(value + mine.normal(0, 10, np.shape(value)) - other.normal(0, 10, np.shape(value)))

    sent, said = reply.content["arrays"], reply.content["metrics"]
    metrics = {key: masked(key, np.array(value)).tolist() for key, value in said.items() if key != "num-examples"}
    reply.content["arrays"] = ArrayRecord({n: Array(masked(n, a.numpy()).astype("f4")) for n, a in sent.items()})
    reply.content["metrics"] = MetricRecord({"num-examples": 1, **metrics})
    return reply


def test_clients_that_climb_find_a_rate_under_secure_aggregation() -> None:
    """Votes are bins of a sum. The run is the one that sees every reply, but for what the masks round."""
    app = replace(PYTORCH, rounds=3, rate=1e-6)
    rates = {}
    for hidden, mods in ((False, (climbing_mod,)), (True, (masking, climbing_mod))):
        strategy = FedHyper(FedAvg(fraction_evaluate=0.0), aggregate_only=hidden, norm_cap=0)
        ours, result = run(app, strategy, LocalGrid(app.client(*mods), 10))
        assert ours > 0.7
        rates[hidden] = [row["local_lr"] for row in strategy.history]
        assert not any("votes" in key for metrics in result.train_metrics_clientapp.values() for key in metrics)
    assert 0.03 < rates[True][1] < 3
    assert rates[True] == pytest.approx(rates[False], rel=0.02)  # the mean of their rates, then the one they voted for


def test_masked_clients_that_cannot_climb_keep_the_hint() -> None:
    app = replace(PYTORCH, rounds=3, rate=0.02)
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), aggregate_only=True)
    run(app, strategy, LocalGrid(app.client(masking, mod), 10))
    assert [row["local_lr"] for row in strategy.history][:2] == pytest.approx([0.02] * 2)  # then it may rise


def test_a_masked_client_without_a_vote_still_sends_bins() -> None:
    """Replies of one form: Flower's mean ends the run where one has a metric that the others have not."""

    def client(m: Message, c: Context) -> Message:
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        (0.0 * parameter.sum()).backward()  # no rate makes a difference
        optimizer.step()
        return task.answer(m, ArrayRecord([parameter.detach().numpy()]), x=1.0)

    context = Context(1, 7, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {})
    sent = message(0.1, **{"fedhyper.climb": 10**0.5, "fedhyper.binned": True})
    sent.content["arrays"] = ArrayRecord([np.ones(4, np.float32)])
    metrics = climbing_mod(sent, context, client).content["metrics"]
    assert metrics["fedhyper.votes"] == [0.0] * RUNGS
    assert not {"fedhyper.vote", "fedhyper.gain"} & set(metrics)


@pytest.mark.parametrize(("ratio", "rung"), [(10**0.5, -1), (10**0.1, -3), (1e-3, -1), (True, -1), ("x", -1)])
def test_a_vote_is_in_rungs_of_the_server(ratio: Any, rung: int) -> None:
    """1/2 goes to the minimum in one step; what cannot be a factor is not believed."""

    def client(m: Message, c: Context) -> Message:
        parameter = torch.nn.Parameter(torch.tensor(m.content["arrays"]["0"].numpy()))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        (parameter**2).sum().backward()
        optimizer.step()
        return task.answer(m, ArrayRecord([parameter.detach().numpy()]), x=1.0)

    sent = message(0.1, **{"fedhyper.climb": ratio})
    sent.content["arrays"] = ArrayRecord([np.full(4, 2, np.float32)])
    context = Context(1, 7, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {})
    assert climbing_mod(sent, context, client).content["metrics"]["fedhyper.vote"] == rung


def test_statistics_in_a_list_without_names_are_averaged_and_not_stepped() -> None:
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0))
    run(replace(KERAS, rounds=2), strategy, LocalGrid(KERAS.client(), 4))
    assert strategy.layout.statistics == ["4", "5"]  # of weight, bias, scale, shift, mean, variance, weight, bias


@pytest.mark.parametrize("counters", [False, True])
def test_a_trained_batchnorm_in_a_list_is_known_by_its_counter_or_at_least_suspected(
    counters: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net = task.batchnorm()
    task.train(net, task.load_all()[0], torch.optim.SGD(net.parameters(), lr=0.1))
    values = [value.numpy() for name, value in net.state_dict().items() if counters or "num_batches" not in name]
    with caplog.at_level(logging.WARNING, "flwr"):
        layout = Layout.of(ArrayRecord(values))
    assert layout.statistics == (["4", "5"] if counters else [])
    assert ("look like BatchNorm" in caplog.text) == (not counters)
    caplog.clear()
    told = Layout.of(ArrayRecord(values), trainable=lambda name: name not in ("4", "5"))
    assert told.statistics == ["4", "5"]
    assert not caplog.text


def test_layernorms_and_plain_layers_in_a_list_are_trained() -> None:
    plain = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
    )
    values = [value.numpy() for value in plain.state_dict().values()]
    assert Layout.of(ArrayRecord(values)).statistics == []


def test_an_app_may_say_what_its_loss_and_its_rate_are_called() -> None:
    def other(message: Message, context: Context) -> Message:
        net, data = task.mlp(), task.load(context)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["step"], momentum=0.9)
        loss = task.train(net, data, optimizer)
        return task.answer(message, ArrayRecord(net.state_dict()), nll=loss, **{"num-examples": len(data[0])})

    app = replace(PYTORCH, train=other)
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), lr_key="step", loss_key="nll")
    assert run(app, strategy, LocalGrid(app.client(), 10))[0] > 0.85
    assert strategy.history[1]["train_loss"] is not None


def test_the_usual_names_of_the_rate_are_tried() -> None:
    def other(message: Message, context: Context) -> Message:
        message.content["config"]["lr"] = message.content["config"]["learning-rate"]
        return PYTORCH.train(message, context)

    app = replace(PYTORCH, train=other)
    named = {"train_config": ConfigRecord({"learning-rate": 1e-5})}
    assert run(app, FedHyper(FedAvg(fraction_evaluate=0.0)), LocalGrid(app.client(), 10), **named)[0] > 0.85


# --- the mod ---------------------------------------------------------------------------------------------------------


def message(rate: float, **more: Any) -> Message:
    config = ConfigRecord({"local-lr": rate, "lr": rate, "server-round": 1, **more})
    return Message(RecordDict({"arrays": PYTORCH.initial(), "config": config}), 7, "train")


CONTEXT = Context(1, 7, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {})


def rates(make: Any, rate: float, steps: int = 3) -> list[list[float]]:
    """The rates that each step really used, by SGD on a gradient of one."""
    used = []

    def client(_: Message, __: Context) -> Message:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer, after = make(parameters)
        for _ in range(steps):
            before = [p.item() for p in parameters]
            optimizer.zero_grad()
            sum(parameters).sum().backward()
            optimizer.step()
            used.append([round(b - p.item(), 6) for b, p in zip(before, parameters, strict=True)])
            after()
        return task.answer(message(rate), PYTORCH.initial(), x=1.0)

    mod(message(rate), CONTEXT, client)
    return used


def test_groups_keep_their_ratio_and_a_schedule_its_shape() -> None:
    def two_groups(p: Any) -> Any:
        return torch.optim.SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "lr": 0.01}]), lambda: None

    def decayed(p: Any) -> Any:
        optimizer = torch.optim.SGD(p, lr=5.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return optimizer, schedule.step

    assert rates(two_groups, 0.5) == [[0.5, 0.05]] * 3
    assert rates(decayed, 0.4) == [[0.4, 0.4], [0.2, 0.2], [0.1, 0.1]]


def test_the_client_sees_its_own_rate_again_and_nothing_stays_behind() -> None:
    seen, backward = [], torch.Tensor.backward

    def client(m: Message, context: Context) -> Message:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([parameter], lr=1e-3)
        (parameter * 3).sum().backward()
        optimizer.step()
        seen.append(optimizer.param_groups[0]["lr"])
        return task.answer(m, PYTORCH.initial(), x=1.0)

    reply = mod(message(0.25), CONTEXT, client)
    assert seen == [1e-3]
    assert torch.Tensor.backward is backward
    metrics = reply.content["metrics"]
    assert (metrics["fedhyper.lr"], metrics["fedhyper.train-loss"]) == (0.25, 0.0)
    assert "fedhyper.loss" not in metrics  # one batch's says little


def test_other_threads_are_left_alone() -> None:
    moved: list[float] = []

    def elsewhere() -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        parameter.sum().backward()
        optimizer.step()
        moved.append(-parameter.item())

    def client(m: Message, context: Context) -> Message:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        elsewhere()
        return task.answer(m, PYTORCH.initial(), x=1.0)

    mod(message(0.125), CONTEXT, client)
    assert moved == [1.0, 0.125]


def test_a_client_without_torch_and_a_message_of_another_server_pass_through() -> None:
    reply = mod(message(0.1), CONTEXT, lambda m, c: task.answer(m, PYTORCH.initial(), x=1.0))
    assert dict(reply.content["metrics"].items()) == {"x": 1.0}
    plain = Message(RecordDict({"config": ConfigRecord({"lr": 0.1})}), 7, "train")
    assert mod(plain, CONTEXT, lambda m, c: m) is plain


def test_a_client_that_fails_at_high_rates_votes_for_a_low_one_and_keeps_its_state() -> None:
    context = Context(1, 7, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {})
    asked = []

    def client(m: Message, c: Context) -> Message:
        count = int(c.state["n"]["n"]) if "n" in c.state else 0
        c.state["n"] = ConfigRecord({"n": count + 1})
        parameter = torch.nn.Parameter(torch.ones(4) * 2)
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        for _ in range(5):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
            if parameter.abs().max() > 2:
                raise RuntimeError("diverged")
        asked.append(count)
        return task.answer(m, ArrayRecord([parameter.detach().numpy()]), x=1.0)

    sent = message(0.1, **{"fedhyper.climb": True})
    sent.content["arrays"] = ArrayRecord([np.full(4, 2, np.float32)])
    reply = climbing_mod(sent, context, client)
    assert -2 <= reply.content["metrics"]["fedhyper.vote"] <= 0  # 0.1 to 1; from 1 on it goes to and fro
    assert reply.content["metrics"]["fedhyper.gain"] > 0
    assert set(asked) == {0}  # each try begins with the state of the first
    assert context.state["n"]["n"] == 1


def test_the_highest_rate_is_tried() -> None:
    """A loss so flat that the higher a rate the better."""

    def client(m: Message, c: Context) -> Message:
        parameter = torch.nn.Parameter(torch.tensor(m.content["arrays"]["0"].numpy()))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            (1e-3 * parameter**2).sum().backward()
            optimizer.step()
        return task.answer(m, ArrayRecord([parameter.detach().numpy()]), x=1.0)

    sent = message(0.1, **{"fedhyper.climb": 10**0.5})
    sent.content["arrays"] = ArrayRecord([np.full(4, 2, np.float32)])
    assert climbing_mod(sent, CONTEXT, client).content["metrics"]["fedhyper.vote"] == 2


@pytest.mark.parametrize("parts", [1, 2])
def test_a_client_of_one_step_votes_by_what_its_batch_loses_after_it(parts: int) -> None:
    """The losses that it minimises are all from before the step: they are the same at any rate."""
    context = Context(1, 7, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {})

    def client(m: Message, c: Context) -> Message:
        c.state["n"] = ConfigRecord({"n": int(c.state["n"]["n"]) + 1 if "n" in c.state else 1})
        parameter = torch.nn.Parameter(torch.tensor(m.content["arrays"]["0"].numpy()))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        for _ in range(parts):  # of a batch, for one step
            ((parameter**2).sum() / parts).backward()
        optimizer.step()
        return task.answer(m, ArrayRecord([parameter.detach().numpy()]), x=1.0)

    sent = message(0.1, **{"fedhyper.climb": True})
    sent.content["arrays"] = ArrayRecord([np.full(4, 2, np.float32)])
    reply = climbing_mod(sent, context, client)
    assert reply.content["metrics"]["fedhyper.vote"] == -1  # 1/2 goes to the minimum; 10 ** -0.5 is the rung next to it
    assert np.allclose(reply.content["arrays"]["0"].numpy(), 2 * (1 - 2 * 10**-0.5))  # and one step long
    assert context.state["n"]["n"] == 1
    assert np.array_equal(sent.content["arrays"]["0"].numpy(), np.full(4, 2, np.float32))


# --- the real engine -------------------------------------------------------------------------------------------------


@pytest.mark.flower
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.parametrize("name", ["pytorch", "adamw", "sklearn"])
def test_through_the_simulation_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: on a busy machine clients would wait for all others
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    app = {"pytorch": PYTORCH, "adamw": ADAMW, "sklearn": SKLEARN}[name]
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedHyper(FedAvg(fraction_evaluate=0.0, min_train_nodes=10, min_available_nodes=10))
        found.append((run(app, strategy, grid)[0], strategy.history))

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server, app.client(*CASES[name][0]), 10, backend_config=resources)
    [(accuracy, history)] = found
    assert accuracy > CASES[name][1]
    assert [row["clients_rejected"] for row in history[1:]] == [0] * (app.rounds - 1)
