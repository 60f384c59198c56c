"""One run: reproducible, resumable, transactional, and what each method does to the two rates."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper.sim.data.tasks import load_task
from fedhyper.sim.methods import Local, make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.registry import METHODS
from fedhyper.sim.simulation import Simulation
from tests.sim_support import batchnorm_net, make_simulation, run

TABLE = [*METHODS, "fedhyper-g+momentum", "fedhyper-sl+adam"]


@pytest.mark.parametrize("method", TABLE)
def test_resumed_equals_never_stopped(method: str) -> None:
    whole, first, second = (make_simulation(method) for _ in range(3))
    expected = run(whole, 4)
    for _ in range(2):
        first.run_round()
    tensors, values = first.state()
    second.restore({k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(values, allow_nan=False)))
    assert second.round == 2
    assert run(second, 2) == expected[2:]
    assert second.weights_sha256() == whole.weights_sha256()
    first.close()


@pytest.mark.parametrize("method", TABLE)
def test_same_seed_same_bits_other_seed_other_bits(method: str) -> None:
    digests = []
    for seed in (0, 0, 1):
        simulation = make_simulation(method, seed=seed)
        run(simulation, 2)
        digests.append(simulation.weights_sha256())
    assert digests[0] == digests[1] != digests[2]


def test_global_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy())
    one = make_simulation()
    run(one, 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    torch.manual_seed(2)
    other = make_simulation()
    run(other, 2)
    assert one.weights_sha256() == other.weights_sha256()


def test_bound_of_one_is_fedavg_bit_for_bit() -> None:
    plain, held = make_simulation("fedavg"), make_simulation("fedhyper-g+cl", options={"global_bound": 1.0})
    cl = {"local_bound": 1.0, "global_bound": 1.0}
    still = make_simulation("fedhyper-g+cl", options=cl)
    for simulation in (plain, held, still):
        run(simulation, 3)
    assert plain.weights_sha256() == still.weights_sha256()
    assert plain.weights_sha256() != held.weights_sha256()


def test_sl_survives_the_round() -> None:
    # the published code computes SL's rate and throws it away: every round there starts from the initial one
    records = run(make_simulation("fedhyper-sl", local_lr=0.1), 4)
    rates = [record["local_lr"] for record in records]
    assert rates[0] == rates[1] == 0.1  # nothing to compare with until two rounds are done
    assert rates[2] == pytest.approx(0.1 + records[1]["hypergrad"])
    assert rates[3] == pytest.approx(rates[2] + records[2]["hypergrad"])


def test_g_moves_before_it_is_applied() -> None:
    records = run(make_simulation("fedhyper-g"), 3)
    assert records[0]["global_lr"] == 1.0
    assert records[1]["global_lr"] == pytest.approx(min(3.0, 1.0 + records[1]["hypergrad"]))


def test_decay_starts_at_the_initial_rate_on_both_sides() -> None:
    on_server = [r["global_lr"] for r in run(make_simulation("decay-g"), 3)]
    on_clients = [r["local_lr"] for r in run(make_simulation("decay-sl", local_lr=1.0), 3)]
    assert on_server == pytest.approx([1, 0.995, 0.995**2])
    assert on_clients == pytest.approx([1, 0.995, 0.995**2])


def loss_of(simulation: Simulation) -> float:
    """The test loss of ``named_weights`` in a plain model."""
    task, model = load_task("digits"), make_model("mlp", (1, 8, 8), 10, seed=1)
    model.load_state_dict(simulation.named_weights())
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(task.test_x), task.test_y))


def test_fedexp_evaluates_and_saves_the_mean_of_the_last_two() -> None:
    simulation = make_simulation("fedexp")
    simulation.run_round()
    last = simulation.server_state.now.weights
    record = simulation.run_round()
    middle = (simulation.server_state.now.weights + last) / 2
    assert record["test_loss"] == pytest.approx(loss_of(simulation), rel=1e-6)
    assert record["global_lr"] >= 1.0
    torch.testing.assert_close(torch.cat([w.flatten() for w in simulation.named_weights().values()]), middle)


def test_fedhyper_evaluates_and_saves_a_mean_of_the_last_rounds_and_trains_from_the_newest() -> None:
    simulation = make_simulation("fedhyper", options={"recency": 1.0})
    for _ in range(25):
        record = simulation.run_round()
    newest, mean = simulation.server_state.now.weights, simulation.server_state.mean.weights
    assert simulation.server_state.averaged > 1
    assert not torch.equal(newest, mean)
    torch.testing.assert_close(torch.cat([w.flatten() for w in simulation.named_weights().values()]), mean)
    assert record["test_loss"] == pytest.approx(loss_of(simulation), rel=1e-6)


def test_reset_and_carry() -> None:
    """CL's clients start a round from the server's rate, or with carry from the mean of their last ones."""
    reset, carry = make_simulation("fedhyper-cl"), make_simulation("fedhyper-cl", carry=True)
    firsts: list[list[float]] = []
    for simulation in (reset, carry):
        sent: list[float] = []
        train = simulation.engine.train

        def watched(tasks: Any, given: Any, train: Any = train, sent: list[float] = sent) -> Any:
            sent.append(given.local_lr)
            return train(tasks, given)

        simulation.engine.train = watched  # type: ignore[method-assign]
        run(simulation, 2)
        firsts.append(sent)
    assert firsts[0] == [0.1, 0.1]
    assert firsts[1][0] == 0.1 < firsts[1][1]  # gradients of one client's batches agree at the start


def poison(simulation: Simulation, bad: set[int], value: float) -> None:
    """The clients in ``bad`` (by position in the round) return ``value``, whatever rate they try."""
    train = simulation.engine.train
    clients: set[int] = set()

    def poisoned(tasks, sent):  # type: ignore[no-untyped-def]
        if len(tasks) == simulation.clients_per_round:  # all of them; when rates are tried out some train longer
            clients.clear()
            clients.update(tasks[i].client for i in bad)
        for reply in train(tasks, sent):
            yield reply._replace(delta=reply.delta * 0 + value) if reply.client in clients else reply

    simulation.engine.train = poisoned  # type: ignore[method-assign]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 2, 3])
@pytest.mark.parametrize("method", ["fedavg", "fedhyper-g+cl", "fedexp", "fedhyper"])
def test_bad_update_is_dropped_and_counted(method: str, position: int, value: float) -> None:
    hit = make_simulation(method)
    poison(hit, {position}, value)
    record = run(hit, 2)[-1]
    assert record["clients_rejected"] == 1
    assert record["clients_used"] == 3
    assert record["reject_reasons"] == {"non-finite": 1}
    assert all(torch.isfinite(w).all() for w in hit.named_weights().values())


@pytest.fixture
def trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is known from the start: what a test does to an engine later on is seen."""
    monkeypatch.setattr("fedhyper.sim.simulation._KEPT", 0)


@pytest.mark.parametrize("method", TABLE)
def test_round_without_usable_update_changes_no_weights(method: str, trained_again: None) -> None:
    simulation = make_simulation(method)
    simulation.run_round()
    before, digest = simulation.server_state, simulation.weights_sha256()
    poison(simulation, {0, 1, 2, 3}, math.nan)
    record = simulation.run_round()
    after = simulation.server_state
    assert (record["clients_used"], record["rollback"]) == (0, False)
    assert simulation.weights_sha256() == digest
    assert simulation.idle_rounds == 1
    assert simulation.round == 2
    if method == "fedhyper":  # everybody returning nonsense is news about the rate
        assert after.local_lr < before.local_lr
    else:
        assert after == before._replace(round=2, idle=1)


def test_norm_cap_limits_one_huge_update() -> None:
    free, capped = make_simulation(norm_cap=0.0), make_simulation(norm_cap=2.0)
    honest = make_simulation()
    for simulation in (free, capped):
        poison(simulation, {1}, 1e3)
    norms = [run(simulation, 1)[0]["update_norm"] for simulation in (free, capped, honest)]
    assert norms[0] > 1e3
    assert norms[1] < 3 * norms[2]  # one of four


@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_losses_that_say_damage_bring_back_the_last_good_weights_and_statistics(
    model: str, trained_again: None
) -> None:
    simulation = make_simulation("fedhyper", model=batchnorm_net() if model == "batchnorm" else model)
    for _ in range(6):
        simulation.run_round(evaluate=False)
    train = simulation.engine.train
    simulation.engine.train = lambda *a: (r._replace(first_loss=1e3) for r in train(*a))  # type: ignore[method-assign]
    simulation.engine.accuracy_by_client = lambda sent, asked: [0.1] * asked.clients  # type: ignore[method-assign]
    assert not simulation.run_round()["rollback"]
    before = simulation.server_state
    assert simulation.run_round()["rollback"]  # four clients a round: by now most of the last ten have met it
    after = simulation.server_state
    assert torch.equal(after.now.weights, before.good.weights)
    assert torch.equal(after.now.statistics, before.good.statistics)
    assert after.local_lr < before.local_lr
    simulation.close()


@pytest.mark.parametrize("lie", [1e9, -1e9, math.nan, math.inf])
def test_one_client_that_lies_about_its_loss_changes_next_to_nothing(lie: float) -> None:
    honest, lied = make_simulation("fedhyper", clients_per_round=10), make_simulation("fedhyper", clients_per_round=10)
    train = lied.engine.train

    def lying(*given: Any) -> Any:
        for i, reply in enumerate(train(*given)):
            yield reply._replace(first_loss=lie) if i == 0 else reply

    lied.engine.train = lying  # type: ignore[method-assign]
    first, second = run(honest, 25), run(lied, 25)
    assert not any(record["rollback"] for record in second)
    assert second[-1]["accuracy"] >= first[-1]["accuracy"] - 0.02
    assert {record["local_lr"] for record in second[1:]} == {record["local_lr"] for record in first[1:]}


@pytest.mark.parametrize("local_lr", [1e-6, 1.0, 100.0])
def test_the_initial_rate_does_not_matter(local_lr: float) -> None:
    one, other = (make_simulation("fedhyper", clients_per_round=10, local_lr=lr) for lr in (0.01, local_lr))
    assert run(one, 4) == run(other, 4)
    assert one.weights_sha256() == other.weights_sha256()


@pytest.mark.parametrize(
    "local",
    [
        Local(kind="adam"),
        Local(kind="adamw", weight_decay=0.01),
        Local(kind="momentum"),
        Local(kind="nesterov"),
        Local(clip_norm=1.0),
        Local(weight_decay=1e-4),
    ],
    ids=lambda local: f"{local.kind}-{local.weight_decay}-{local.clip_norm}",
)
def test_the_rate_is_found_whatever_clients_step_with(local: Local) -> None:
    settings: dict[str, Any] = {"clients": 30, "clients_per_round": 10, "batch_size": 10, "local": local}
    runs = [make_simulation("fedhyper", model="logistic", local_lr=lr, **settings) for lr in (1e-6, 100.0)]
    one, other = (run(simulation, 30) for simulation in runs)
    assert one == other
    assert runs[0].weights_sha256() == runs[1].weights_sha256()
    assert one[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("kept", [1 << 19, 0])
def test_the_record_says_what_the_start_cost(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr("fedhyper.sim.simulation._KEPT", kept)
    trained: list[int] = []

    class Counting:
        def __init__(self, engine: Any) -> None:
            self.engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

        def train(self, tasks: Any, sent: Any) -> Any:
            trained[-1] += len(tasks) if sent.local_lr > 1e-20 else 0  # a panel's losses are not local rounds
            return self.engine.train(tasks, sent)

    simulation = make_simulation("fedhyper", clients_per_round=3)
    simulation.engine = Counting(simulation.engine)
    records = []
    for _ in range(6):
        trained.append(0)
        records.append(simulation.run_round(evaluate=False))
    simulation.close()
    made = 24 if trained[5] == 0 else 0  # rounds of the run that the start has made
    assert records[0]["start_trials"] == trained[0] - 3 * max(made, 1) > 3 * 9
    assert [record.get("start_trials") for record in records[1:]] == [None] * 5
    assert trained[1:] == [0 if made else 3] * 5


def test_the_first_round_trains_at_the_rate_that_was_found() -> None:
    simulation = make_simulation("fedhyper", clients_per_round=10)
    first, second = run(simulation, 2)
    rung = math.log(first["local_lr"], 10**0.5)
    assert rung == pytest.approx(round(rung), abs=1e-9)
    assert first["local_lr_min"] == first["local_lr_max"] == second["local_lr"]
    assert first["clients_used"] == 10  # no round is lost


@pytest.mark.parametrize("asked", [1, 3, 12])
def test_the_start_takes_one_round_however_few_clients_there_are(asked: int) -> None:
    simulation = make_simulation("fedhyper", clients_per_round=asked)
    climbs = []
    for _ in range(3):
        climbs.append(simulation.server_state.climbs)
        simulation.run_round(evaluate=False)
    simulation.close()
    assert climbs == [True, False, False]


@pytest.mark.parametrize("sampling", ["uniform", "size"])
def test_sampling(sampling: str) -> None:
    simulation = make_simulation(sampling=sampling, clients=12, clients_per_round=12)
    tasks = simulation.cohorts.tasks(0)
    assert sorted(task.client for task in tasks) == list(range(12))
    assert [task.examples for task in tasks] == sorted((task.examples for task in tasks), reverse=True)
    some = make_simulation(sampling=sampling, clients_per_round=3)
    seen = np.zeros(12)
    for t in range(300):
        for task in some.cohorts.tasks(t):
            seen[task.client] += 1
    sizes = some.partition.sizes
    likely, rare = int(sizes.argmax()), int(sizes.argmin())
    assert (seen[likely] > 1.5 * seen[rare]) == (sampling == "size")
    simulation.close()
    some.close()


def test_a_million_local_steps_are_not_drawn_before_the_first() -> None:
    simulation = make_simulation(local_steps=1_000_000)
    tracemalloc.start()
    tasks = simulation.cohorts.tasks(0)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert {len(task.batches) for task in tasks} == {1_000_000}
    simulation.close()


def test_batches_cover_every_example_once_an_epoch() -> None:
    simulation = make_simulation(local_epochs=2, batch_size=7)
    for task in simulation.cohorts.tasks(5):
        own = np.sort(simulation.partition.client(task.client))
        batches, half = list(task.batches), len(task.batches) // 2
        for epoch in (batches[:half], batches[half:]):
            assert (np.sort(np.concatenate(epoch)) == own).all()
    steps = make_simulation(local_steps=5)
    assert {len(task.batches) for task in steps.cohorts.tasks(0)} == {5}
    simulation.close()
    steps.close()


def test_weighting() -> None:
    digests = []
    for weighting in ("examples", "uniform"):
        simulation = make_simulation(weighting=weighting)
        run(simulation, 1)
        digests.append(simulation.weights_sha256())
    assert digests[0] != digests[1]


def test_bytes_are_counted() -> None:
    plain, both = run(make_simulation("fedavg"), 2), run(make_simulation("fedhyper-cl"), 2)
    parameters = 4 * (64 * 200 + 200 + 200 * 10 + 10)
    assert plain[0]["bytes_up"] == 4 * (parameters + 24)
    assert plain[1]["bytes_down"] == both[0]["bytes_down"] == 4 * (parameters + 8)
    assert both[1]["bytes_down"] == 4 * (2 * parameters + 8)  # CL's global term costs a second model


def test_methods_differ_where_they_should() -> None:
    digests = {}
    for method in METHODS:
        # FedSPS is FedAvg while its Polyak rate is above the rate that was sent
        simulation = make_simulation(method, global_lr=0.5, local_lr=5.0 if method == "fedsps" else 0.05)
        run(simulation, 3)
        digests[method] = simulation.weights_sha256()
    assert len(set(digests.values())) == len(METHODS)


def test_unknown_method_and_option_name_the_cure() -> None:
    from fedhyper.errors import UserError

    with pytest.raises(UserError, match="did you mean 'fedadam'"):
        make_method("fedadm", local_lr=0.1, global_lr=1.0)
    with pytest.raises(UserError, match=r"options.tua .* did you mean 'tau'"):
        make_method("fedadam", local_lr=0.1, global_lr=1.0, tua=1.0)
    with pytest.raises(UserError, match="bound is a factor"):
        make_method("fedhyper-g", local_lr=0.1, global_lr=1.0, global_bound=0.3)


def test_learns_the_digits() -> None:
    records = run(make_simulation("fedavg", local_lr=0.3, clients_per_round=8, task=load_task("digits")), 30)
    assert records[-1]["accuracy"] > 0.85


def test_bad_statistics_are_dropped_like_bad_weights() -> None:
    simulation = make_simulation(model=batchnorm_net())
    train = simulation.engine.train

    def poisoned(tasks, sent):  # type: ignore[no-untyped-def]
        for i, reply in enumerate(train(tasks, sent)):
            yield reply._replace(buffers=reply.buffers * math.inf) if i == 1 else reply

    simulation.engine.train = poisoned  # type: ignore[method-assign]
    record = run(simulation, 1)[0]
    assert record["reject_reasons"] == {"non-finite statistics": 1}
    assert all(torch.isfinite(w.double()).all() for w in simulation.named_weights().values())


def test_a_failing_evaluation_changes_nothing() -> None:
    """The state changes only when everything has succeeded: the same round can be run again."""
    broken, plain = make_simulation("fedhyper-g"), make_simulation("fedhyper-g")
    evaluate, broken.engine.evaluate = broken.engine.evaluate, None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        broken.run_round()
    assert broken.round == 0
    broken.engine.evaluate = evaluate  # type: ignore[method-assign]
    assert run(broken, 2) == run(plain, 2)


def test_an_update_of_another_length_is_refused() -> None:
    simulation = make_simulation()
    train = simulation.engine.train

    def cut(*given: Any) -> Any:
        for i, reply in enumerate(train(*given)):
            yield reply._replace(delta=reply.delta[:-1]) if i == 1 else reply

    simulation.engine.train = cut  # type: ignore[method-assign]
    [record] = run(simulation, 1)
    assert record["clients_rejected"] == 1
    assert next(iter(record["reject_reasons"])).startswith("shape")


def test_an_engine_of_ones_own() -> None:
    """``Simulation(engine=...)`` takes any Engine: here the default one of a twin, counted."""
    twin, calls = make_simulation(), []

    class Counted:
        def train(self, tasks: Any, sent: Any) -> Any:
            calls.append(len(tasks))
            return twin.engine.train(tasks, sent)

        def __getattr__(self, name: str) -> Any:
            return getattr(twin.engine, name)

    assert run(make_simulation(engine=Counted()), 2) == run(make_simulation(), 2)
    assert calls == [4, 4]


def test_a_whole_number_is_a_rate_too() -> None:
    assert run(make_simulation(local_lr=1, global_lr=1), 1) == run(make_simulation(local_lr=1.0), 1)
