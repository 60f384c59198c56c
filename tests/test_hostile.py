"""Hostile clients: what one of them sends moves a run by no more than its share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhyper.lab.running.build as build
from fedhyper.baselines import Constant
from fedhyper.errors import TrainingStopped
from fedhyper.flower.records.fair import weigh
from fedhyper.flower.records.replies import NodeReply
from fedhyper.guard import AGAINST, NORM_CAP, WEIGHT_CAP, bounded, fair_weights, judging_weights, not_against
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.run import run_experiment
from fedhyper.plan import Pair
from fedhyper.server import Server
from fedhyper.sim.aggregate import judged
from fedhyper.sim.engines.base import Reply, Sent
from fedhyper.sim.engines.hostile import ATTACKS, HostileEngine
from fedhyper.sim.robust import robust
from fedhyper.sim.simulation import Simulation

from .sim_support import batchnorm_net, make_simulation, run

LIARS = ["loss 1e9", "loss −1e9", "loss NaN", "loss −1e9 once", "loss ×3", "loss 10 for 15 rounds"]
vectors = st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4)
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=300)


def attacked(name: str, clients: Collection[int] = (3,), method: str = "fedhyper", **more: Any) -> Simulation:
    """Ten clients on the digits, all of them in every round."""
    simulation = make_simulation(method, clients=10, clients_per_round=10, **more)
    simulation.engine = HostileEngine(simulation.engine, ATTACKS[name], clients)
    return simulation


def accuracy(simulation: Simulation, rounds: int = 25) -> float:
    records = run(simulation, rounds)
    return float(sum(record["accuracy"] for record in records[-5:]) / 5)


# Weights that are fair -----------------------------------------------------------------------------------------------


def test_fair_weights_by_hand() -> None:
    # pulls 1, 2, 3, 100: their median is 2.5, and nobody of four pulls harder than the second
    assert fair_weights([1.0] * 4, [1.0, 2.0, 3.0, 100.0], 2.0) == [1.0, 1.0, 1.0, 0.03]
    assert fair_weights([1.0] * 4, [1.0, 2.0, 3.0, 100.0], 1.0) == [1.0, 1.0, 2.5 / 3, 0.025]
    # of ten nobody pulls harder than the third
    assert fair_weights([1.0] * 10, [1.0] * 7 + [2.0, 4.0, 8.0]) == [1.0] * 8 + [0.5, 0.25]
    # if three are hostile, three medians
    assert fair_weights([1.0] * 10, [1.0] * 7 + [6.0, 30.0, 300.0]) == [1.0] * 7 + [0.5, 0.1, 0.01]
    # weights 1, 1, 1, 2**53: the last counts as 10, and pulls 10 where the second pulls 1
    assert fair_weights([1, 1, 1, 2**53], [1.0] * 4, 2.0) == [1.0, 1.0, 1.0, 1.0]
    # who hardly moves keeps the largest weight there is
    assert fair_weights([1, 1, 1, 2**53], [1.0, 1.0, 1.0, 0.0], 2.0) == [1.0, 1.0, 1.0, WEIGHT_CAP]
    assert fair_weights([3.0], [7.0], 1.0) == [3.0]
    assert fair_weights([1.0, 1.0], [1.0, 100.0]) == [1.0, 1.0]  # of two nobody can tell who is the odd one
    assert fair_weights([], []) == []


def judge(weights: Sequence[float], updates: Sequence[Sequence[float]]) -> list[float]:
    """``not_against`` of vectors."""
    rows = np.array(updates)
    squares = (rows * rows).sum(1)
    judging = judging_weights(weights, np.sqrt(squares).tolist())
    return not_against(weights, squares.tolist(), (rows @ (np.array(judging) @ rows)).tolist())


def test_a_weight_against_the_others_by_hand() -> None:
    # nine agree on (1, 0): R = (9, 0); one turned round may cost 16.2, and at 3 times their length costs 27
    assert judge([1.0] * 10, [[1.0, 0.0]] * 9 + [[-1.0, 0.0]]) == [1.0] * 10
    assert judge([1.0] * 10, [[1.0, 0.0]] * 9 + [[-3.0, 0.0]])[-1] == pytest.approx(16.2 / 27)
    assert judge([2.0] * 10, [[1.0, 0.0]] * 9 + [[-3.0, 0.0]])[-1] == pytest.approx(2 * 16.2 / 27)
    # three of ten, three times as long: each counts as one, R is (5, 0) for them and (3, 0) for the honest. They may
    # cost 5 and cost 15; none of the honest is cut. By their own lengths the sum would be theirs
    assert judge([1.0] * 10, [[1.0, 0.0]] * 7 + [[-3.0, 0.0]] * 3) == pytest.approx([1.0] * 7 + [5 / 15] * 3)
    # what is across costs nobody anything
    assert judge([1.0] * 10, [[1.0, 0.0]] * 9 + [[0.0, 100.0]]) == [1.0] * 10
    assert judge([1.0] * 10, [[1.0, 0.0]] * 9 + [[100.0, 0.0]]) == [1.0] * 10
    # the others must move for there to be anything to take back
    assert judge([1.0] * 3, [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]) == [1.0] * 3
    assert judge([1.0], [[5.0, 5.0]]) == [1.0]
    assert not_against([], [], []) == []
    assert not_against([1.0, 2.0], [math.inf, 1.0], [math.nan, 1.0]) == [1.0, 2.0]


@given(st.integers(2, 12).flatmap(lambda n: st.lists(vectors, min_size=n, max_size=n)), st.floats(1e-3, 1e3))
@repeatable
def test_nobody_takes_back_more_than_a_fifth_of_the_others_way(updates: list[list[float]], unit: float) -> None:
    weights = [unit * (1 + i % 3) for i in range(len(updates))]
    left, rows = judge(weights, updates), np.array(updates)
    judging = np.array(judging_weights(weights, np.linalg.norm(rows, axis=1).tolist()))
    sums = (judging @ rows) - judging[:, None] * rows  # the others', none of whom pulls harder than the median
    for before, after, row, others in zip(weights, left, rows, sums, strict=True):
        assert 0 < after <= before
        most = max(AGAINST * others @ others, 1e-3 * before**2 * row @ row)
        assert -after * row @ others <= most * (1 + 1e-6) + 1e-9 * before**2
        if -before * row @ others < most * (1 - 1e-6) - 1e-9 * before**2:
            assert after == before  # to the bit
    assert judge([2 * w for w in weights], updates) == pytest.approx([2 * w for w in left])  # in any unit


def test_simulator_flower_and_server_have_one_rule() -> None:
    """The same ten updates, one turned round and long, weigh the same in all of them."""
    rng = np.random.default_rng(0)
    updates = list(rng.normal(1.0, 1.0, (10, 300)).astype(np.float32))
    updates[4], weights = -5 * updates[4], [float(w) for w in rng.integers(1, 40, 10)]
    none, rest = torch.empty(0), [1.0] * 6  # losses and rates
    replies = [
        Reply(i, w, torch.tensor(d), none, none, *rest) for i, (d, w) in enumerate(zip(updates, weights, strict=True))
    ]
    simulated = [
        reply.examples for reply in judged(iter(replies), Sent(torch.zeros(300), none, none, 0.1, None), NORM_CAP)
    ]

    before = {"w": np.zeros(300, np.float32)}
    nodes = [
        NodeReply(None, i, w, "", {"w": -d}, {}, float(d.astype(float) @ d))  # type: ignore[arg-type]
        for i, (d, w) in enumerate(zip(updates, weights, strict=True))
    ]
    flower = [reply.weight for reply in weigh(nodes, NORM_CAP, before, ["w"])[0]]
    assert flower == pytest.approx(simulated, rel=1e-5)
    assert sum(new < old for new, old in zip(simulated, weights, strict=True)) >= 2

    server = Server(np.zeros(300), Pair(local_rule=Constant(lr=0.1)))
    server.step([d.astype(float) for d in updates], examples=weights)
    np.testing.assert_allclose(-server.weights, np.average(updates, axis=0, weights=simulated), rtol=1e-5, atol=1e-6)


def test_clients_that_send_zeros_do_not_lower_the_median() -> None:
    assert fair_weights([1.0] * 5, [0.0, 0.0, 0.0, 1.0, 2.0], 2.0) == [1.0] * 5
    assert fair_weights([1.0] * 3, [0.0] * 3, 2.0) == [1.0] * 3


@given(
    st.lists(st.tuples(st.floats(1.0, 1e3), st.floats(0.5, 2.0)), min_size=3, max_size=30),
    st.floats(1e-300, 2.0**53),
    st.floats(0.0, 1e300),
)
@repeatable
def test_one_client_pulls_at_most_as_hard_as_the_strongest_honest_one_and_three_medians(
    honest: list[tuple[float, float]], weight: float, norm: float
) -> None:
    weights, norms = zip(*honest, (weight, norm), strict=True)
    fair = fair_weights(weights, norms)
    assert all(0 <= w <= claimed for w, claimed in zip(fair, weights, strict=True))
    pulls = sorted(w * n for w, n in honest)
    # with one liar the median of all lies between the honest ones next to the middle
    above = pulls[min(len(pulls) // 2 + 1, len(pulls) - 1)]
    assert fair[-1] * norm <= min(NORM_CAP * above, pulls[-1]) * (1 + 1e-9)
    assert fair[-1] <= WEIGHT_CAP * sorted(w for w, _ in honest)[min(len(honest) // 2 + 1, len(honest) - 1)]


def test_a_fair_weight_is_the_claimed_one_to_the_bit_where_nothing_is_cut() -> None:
    weights, norms = [0.1, 0.3, 0.7, 0.2], [1.0, 0.9, 0.5, 1.1]
    assert fair_weights(weights, norms, 100.0) != weights  # 0.35 and 0.27, where 0.27 is the second
    assert fair_weights(weights, [1.0, 0.9, 0.3, 1.35], 100.0) == weights


@pytest.mark.parametrize("attackers", range(1, 50))
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_by_lengths_the_mean_breaks_down_at_one_over_one_plus_the_cap(factor: float, attackers: int) -> None:
    """100 clients, the honest ones agree on +1, the others send −1e6: a fifth of them pulls as the honest do, more of
    them as hard as the cap lets them; the mean keeps its sign up to there."""
    sent = [1.0] * (100 - attackers) + [-1e6] * attackers
    fair = fair_weights([1.0] * 100, [abs(x) for x in sent], factor)
    mean = math.fsum(w * x for w, x in zip(fair, sent, strict=True))
    assert mean == pytest.approx((100 - attackers) - attackers * (1 if attackers <= 20 else factor))


def test_bounded() -> None:
    assert bounded([1.0, 2.0, 3.0, 1e9], 4.0) == [1.0, 2.0, 3.0, 3.0]  # but the strongest
    assert bounded([1.0, 1.0, 1.0, 9.0, 1e9], 4.0) == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert bounded([1.0, math.nan, 1.0, math.inf, -1.0], 4.0) == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert bounded([math.nan], 4.0) == [0.0]


# Statistics that are averaged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "refused"),
    [
        (lambda r: r._replace(buffers=torch.full_like(r.buffers, 1e20)), False),
        (lambda r: r._replace(buffers=torch.full_like(r.buffers, -1e3)), False),
        (lambda r: r._replace(buffers=torch.full_like(r.buffers, math.nan)), True),
        (lambda r: r._replace(buffers=r.buffers[:1]), True),
        (lambda r: r._replace(counters=torch.zeros(7, dtype=torch.int64)), True),
        (lambda r: r._replace(counters=torch.full_like(r.counters, 2**63 - 1)), False),
    ],
)
def test_one_clients_statistics_do_not_take_the_model_down(lie: Callable[[Reply], Reply], refused: bool) -> None:
    simulation = make_simulation("fedavg", model=batchnorm_net(), clients=10, clients_per_round=10, engine="threads")
    simulation.engine = HostileEngine(simulation.engine, lambda reply, _: lie(reply), {3})
    try:
        records = [simulation.run_round() for _ in range(8)]
    finally:
        simulation.close()
    assert records[-1]["accuracy"] is not None
    assert records[-1]["accuracy"] > 0.85
    assert records[-1]["clients_rejected"] == refused
    counters = [value for name, value in simulation.named_weights().items() if name.endswith("num_batches_tracked")]
    assert counters
    assert all(0 < value < 10_000 for value in counters)


# Means that hold -----------------------------------------------------------------------------------------------------

HONEST = [torch.tensor([1.0, 2.0, 3.0]) + 0.1 * i for i in range(-3, 4)]


@pytest.mark.parametrize("kind", ["trimmed", "median", "krum"])
@pytest.mark.parametrize("lie", [1e9, -1e9, 0.0])
def test_a_robust_mean_stays_among_the_honest(kind: Any, lie: float) -> None:
    updates = [torch.full((3,), lie), *HONEST, torch.full((3,), -lie), torch.tensor([1.0, 2.0, 3.0])]
    made, statistics = robust(kind, updates, updates)
    assert torch.equal(made, statistics)
    assert made.dtype == torch.float32
    assert (made - torch.tensor([1.0, 2.0, 3.0])).abs().max() <= 0.3 + 1e-6


def test_robust_means_by_hand() -> None:
    rows = [torch.tensor([float(x), 0.0]) for x in (0, 1, 2, 3, 100)]
    none = [torch.empty(0)] * 5
    assert robust("median", rows, none)[0].tolist() == [2.0, 0.0]
    assert robust("trimmed", rows, none)[0].tolist() == [2.0, 0.0]  # a fifth of five is one: 1, 2, 3
    assert robust("krum", rows, none)[0].tolist() == [1.5, 0.0]  # without 100
    assert robust("median", rows[:4], none[:4])[0].tolist() == [1.5, 0.0]
    assert robust("krum", rows[:2], none[:2])[0].tolist() == [0.5, 0.0]


@pytest.mark.parametrize("kind", ["trimmed", "median", "krum"])
def test_robust_means_do_not_depend_on_the_order_of_clients(kind: Any) -> None:
    rows = list(torch.randn(9, 50, generator=torch.Generator().manual_seed(0)))
    turned = [rows[i] for i in np.random.default_rng(0).permutation(9)]
    np.testing.assert_allclose(robust(kind, rows, rows)[0], robust(kind, turned, turned)[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["trimmed", "median", "krum"])
@pytest.mark.parametrize("method", ["fedhyper", "fedavg"])
def test_a_run_with_a_robust_mean_learns(kind: str, method: str) -> None:
    assert accuracy(attacked("turned ×10", method=method, aggregate=kind, local_lr=0.3)) > 0.7


# Whole runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in ("turned ×3", *LIARS[3:])])
def test_one_client_of_ten_does_not_take_the_default_method_down(attack: str) -> None:
    """benchmarks/hostile.py has the accuracies; here it is shown that none of them is a wreck."""
    simulation = attacked(attack)
    rates = []
    for _ in range(20):
        simulation.run_round(evaluate=False)
        rates.append(simulation.server_state.local_lr)
    found = simulation.evaluate()["accuracy"]
    simulation.close()
    assert found > 0.85
    assert all(0.01 < rate < 10 for rate in rates)


@pytest.mark.parametrize("attack", ["turned ×10", "× 1e6", "weight 2⁵³, turned", "last step ×−100"])
def test_without_the_caps_the_same_attack_wrecks_it(attack: str) -> None:
    assert accuracy(attacked(attack, norm_cap=0.0), 20) < 0.8


@pytest.mark.parametrize("attack", LIARS)
def test_a_liar_about_its_loss_changes_nothing(attack: str) -> None:
    lied, honest = attacked(attack), attacked(attack, clients=())
    theirs, ours = run(lied, 12), run(honest, 12)
    assert not any(record["rollback"] for record in theirs)
    assert [r["update_norm"] for r in theirs] == [r["update_norm"] for r in ours]
    assert all(record["train_loss"] is not None for record in theirs)


@pytest.mark.parametrize("attack", ["votes high", "votes low"])
def test_one_vote_moves_the_start_by_at_most_a_rung(attack: str) -> None:
    lied, honest = attacked(attack), attacked(attack, clients=())
    for simulation in (lied, honest):
        simulation.run_round(evaluate=False)
        simulation.close()
    assert 1 / 3.2 < lied.server_state.local_lr / honest.server_state.local_lr < 3.2


def test_carry_begins_at_the_middle_client_s_rate() -> None:
    simulation = make_simulation("fedhyper-cl", carry=True, clients=10, clients_per_round=10)
    engine = simulation.engine
    simulation.engine = HostileEngine(engine, lambda reply, known: reply._replace(lr_last=1e30), {3})
    simulation.run_round(evaluate=False)
    assert simulation.run_round(evaluate=False)["local_lr"] < 2


def test_fedexp_reads_a_bounded_square() -> None:
    simulation = attacked("× 1e6", method="fedexp")
    rates = [simulation.run_round(evaluate=False)["global_lr"] for _ in range(5)]
    simulation.close()
    assert max(rates) < 100  # 1e6² as it came would make it 1e5 and more


def test_caps_and_robust_means_have_the_same_bits_for_any_number_of_workers() -> None:
    for kind in ("mean", "krum"):
        digests = set()
        for workers in (1, 2):
            simulation = attacked("noise ×10", aggregate=kind, workers=workers)
            run(simulation, 3)
            digests.add(simulation.weights_sha256())
        assert len(digests) == 1


def test_updates_beyond_the_memory_for_them_lie_on_disk_and_the_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = attacked("turned ×10")
    run(here, 2)
    monkeypatch.setattr("fedhyper.sim.aggregate._IN_MEMORY", 100_000)
    there = attacked("turned ×10")
    run(there, 2)
    assert here.weights_sha256() == there.weights_sha256()


# A run that goes nowhere ---------------------------------------------------------------------------------------------


def test_a_run_that_only_rolls_back_ends_with_exit_code_3(tmp_path: Path) -> None:
    """The client is honest while the start looks for a rate: otherwise every rate does harm, and one is found that
    does none."""
    config = make_config({"rounds": 60, "clients": 10, "model": "mlp", "batch_size": 16, "norm_cap": 0.0})

    def make(config: Any, **settings: Any) -> Simulation:
        simulation = build.make_simulation(config, **settings)
        turned = ATTACKS["turned ×10"]
        simulation.engine = HostileEngine(
            simulation.engine, lambda reply, known: turned(reply, known) if simulation.round else reply, {3}
        )
        return simulation

    with pytest.raises(
        TrainingStopped, match=r"^5 rollbacks without a gain between them, up to round \d+: "
    ) as stopped:
        run_experiment(config, tmp_path / "run", make=make)
    assert stopped.value.exit_code == 3
    assert '"status": "diverged"' in (tmp_path / "run" / "summary.json").read_text()
