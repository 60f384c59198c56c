"""The server's round: laws over a table of plans, and the order of events by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper import (
    Adam,
    Average,
    Constant,
    Decay,
    FedExP,
    FedHyperG,
    FedHyperSL,
    LastRounds,
    LastTwo,
    LoopState,
    Model,
    Momentum,
    Newest,
    Pair,
    PlanState,
    RoundReport,
    Seen,
    ServerLoop,
    auto,
)

PLANS = {
    "fedavg": Pair(),
    "g": Pair(global_rule=FedHyperG()),
    "sl": Pair(local_rule=FedHyperSL(lr=0.1)),
    "decay": Pair(global_rule=Decay(), local_rule=Decay(lr=0.1)),
    "fedexp": Pair(global_rule=FedExP(), average=LastTwo()),
    "auto": auto(),
}
OPTIMIZERS = {"plan's own": None, "average": Average(), "momentum": Momentum(), "adam": Adam()}


class Scripted:
    """A plan that gives the verdicts it is told to, one a round, at fixed rates."""

    requires = frozenset(("delta",))
    compares, products_only, graft, ladder = "step", False, None, None

    def __init__(self, *verdicts: str, optimizer: Any = None, average: Any = None, graft: float | None = None) -> None:
        self.verdicts, self.graft = verdicts, graft
        self.optimizer, self.average = optimizer or Average(), average or Newest()
        self.seen: list[Seen] = []

    def init(self) -> PlanState:
        return PlanState(1.0, 0.1, "good", 0.0, 0)

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        self.seen.append(seen)
        return PlanState(1.0, 0.1, self.verdicts[state.memory], 0.5, state.memory + 1)  # type: ignore[arg-type]

    def nonsense(self, state: PlanState) -> PlanState:
        return PlanState(1.0, 0.05, "damaged", math.nan, state.memory)


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)


def reports(seed: int, rounds: int) -> list[RoundReport]:
    """Rounds as they come: updates, a rising loss now and then, a round without loss, two without an update."""
    rng = np.random.default_rng(seed)
    made = []
    for t in range(rounds):
        delta = rng.normal(size=5) * 0.3 + 0.1
        loss = 2.0 / (t + 1) + (9.0 if t % 7 == 6 else 0.0)
        losses = () if t % 5 == 3 else tuple(loss + 0.01 * i for i in range(10))
        votes = ((-2, 0.5),) * 10 if t == 0 else None
        made.append(RoundReport(delta, losses, float(delta @ delta) * 1.5, delta[:2] * 0.1, votes=votes))
    made[2] = RoundReport()
    made[4] = RoundReport(refused=3)
    return made


def run(loop: ServerLoop, rounds: list[RoundReport], state: LoopState | None = None) -> list[tuple[LoopState, Any]]:
    state = loop.init(vector(1, 2, 3, 4, 5), vector(0, 0)) if state is None else state
    out = []
    for report in rounds:
        state, decision = loop.update(state, report)
        out.append((state, decision))
    return out


def flat(value: Any) -> list[Any]:
    """Everything in a state, in order, to compare."""
    if isinstance(value, tuple):
        return [x for item in value for x in flat(item)]
    return value.tolist() if isinstance(value, np.ndarray) else [value]


def same(a: Any, b: Any) -> bool:
    return repr(flat(a)) == repr(flat(b))  # NaN is NaN here


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
class TestLaws:
    def test_pure_and_resumable(self, plan: Any, optimizer: Any) -> None:
        loop, rounds = ServerLoop(plan, optimizer), reports(0, 14)
        whole = run(loop, rounds)
        for cut in (1, 3, 7):
            rest = run(ServerLoop(plan, optimizer), rounds[cut:], whole[cut - 1][0])
            assert same(rest[-1], whole[-1])

    def test_a_round_in_which_nobody_answers_changes_nothing_but_the_count(self, plan: Any, optimizer: Any) -> None:
        loop = ServerLoop(plan, optimizer)
        state, _ = run(loop, reports(1, 6))[-1]
        after, decision = loop.update(state, RoundReport())
        assert decision.action == "idle"
        assert not decision.forget
        assert after == state._replace(round=state.round + 1, idle=state.idle + 1)

    def test_nonsense_from_everybody_leaves_the_weights(self, plan: Any, optimizer: Any) -> None:
        loop = ServerLoop(plan, optimizer)
        state, _ = run(loop, reports(1, 6))[-1]
        after, decision = loop.update(state, RoundReport(refused=4))
        assert decision.action == "idle"
        assert (after.now, after.good, after.mean) == (state.now, state.good, state.mean)
        assert after.idle == state.idle + 1
        assert after.local_lr <= state.local_lr

    def test_a_missing_loss_is_never_a_reason_to_go_back(self, plan: Any, optimizer: Any) -> None:
        rounds = [r._replace(losses=()) for r in reports(2, 20)]
        done = run(ServerLoop(plan, optimizer), rounds)
        assert "rollback" not in {decision.action for _, decision in done}
        assert all(0 < state.local_lr < math.inf for state, _ in done)

    def test_a_rollback_returns_exactly_the_good_weights(self, plan: Any, optimizer: Any) -> None:
        state = ServerLoop(plan, optimizer).init(vector(1, 2, 3, 4, 5), vector(0, 0))
        loop = ServerLoop(plan, optimizer)
        for report in reports(3, 30):
            before = state
            state, decision = loop.update(state, report)
            assert state.round == before.round + 1
            if decision.action == "rollback":
                assert state.now is state.good is before.good
                assert state.mean is before.good
                assert same(state.before, 0.0)
                assert decision.forget
            if decision.action == "step":
                assert state.good is (before.now if state.plan.verdict == "good" else before.good)

    def test_weights_that_overflow_are_nonsense(self, plan: Any, optimizer: Any) -> None:
        loop = ServerLoop(plan, optimizer)
        state = loop.init(np.full(3, -1e308))
        with np.errstate(over="ignore", invalid="ignore"):
            after, decision = loop.update(state, RoundReport(np.full(3, 1.7e308), (1.0,), 1.0))
        assert np.isfinite(after.now.weights).all()
        assert decision.action in ("idle", "rollback", "step")

    def test_the_same_on_pieces_and_on_torch(self, plan: Any, optimizer: Any) -> None:
        loop, rounds = ServerLoop(plan, optimizer), reports(4, 12)
        whole = run(loop, rounds)[-1][0]

        def cut(a: Any) -> Any:
            return a if a is None else {"x": a[:2], "y": a[2:]}

        pieces = loop.init({"x": vector(1, 2), "y": vector(3, 4, 5)}, vector(0, 0))
        tensors = loop.init(torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
        for report in rounds:
            pieces, _ = loop.update(pieces, report._replace(delta=cut(report.delta)))
            given = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in report._asdict().items()}
            tensors, _ = loop.update(tensors, RoundReport(**given))
        joined = np.concatenate([pieces.now.weights["x"], pieces.now.weights["y"]])
        np.testing.assert_allclose(joined, whole.now.weights, rtol=1e-9)
        np.testing.assert_allclose(tensors.now.weights.numpy(), whole.now.weights, rtol=1e-9)
        np.testing.assert_allclose(tensors.mean.statistics.numpy(), whole.mean.statistics, rtol=1e-9)


def test_the_order_of_events_by_hand() -> None:
    plan = Scripted("fair", "good", "good", "damaged", "good", optimizer=Momentum(momentum=0.5), average=LastRounds(0))
    loop = ServerLoop(plan)
    state = loop.init(vector(10.0))
    weights, means, goods, actions = [], [], [], []
    for delta in (1.0, 2.0, 4.0, 8.0, 1.0):
        state, decision = loop.update(state, RoundReport(vector(delta), statistics=vector(delta)))
        weights.append(float(state.now.weights[0]))
        means.append(float(state.mean.weights[0]))
        goods.append(float(state.good.weights[0]))
        actions.append(decision.action)
    # steps: 1; 2 + ½·1; 4 + ½·2.5; back to the weights before the last step; 1, from nothing
    assert weights == [9.0, 6.5, 1.25, 6.5, 5.5]
    assert actions == ["step", "step", "step", "rollback", "step"]
    assert goods == [10.0, 9.0, 6.5, 6.5, 6.5]  # what was only fair is not returned to
    assert means == pytest.approx([9.0, 7.75, (9 + 6.5 + 1.25) / 3, 6.5, 5.5])  # begins anew after the rollback
    # Δ is compared with the step made before, momentum in it; after a rollback with nothing
    assert [float(np.sum(seen.before)) for seen in plan.seen] == [0.0, 1.0, 2.5, 5.25, 0.0]


@pytest.mark.parametrize("plan", ["auto", FedHyperG(), Constant()])
def test_what_is_no_plan_is_refused_by_what_to_use(plan: Any) -> None:
    with pytest.raises(TypeError, match=r"decides no pair of rates; use auto\(\), or Pair"):
        ServerLoop(plan)


def test_nonsense_from_everybody_twice_in_a_row_leads_back() -> None:
    """From a wreck every client diverges; the good weights are at hand. One round may be a single client's doing."""
    loop = ServerLoop(Scripted("fair", "fair"))
    begun = loop.init(vector(1.0))
    wrecked, _ = loop.update(begun, RoundReport(vector(1e30)))
    once, first = loop.update(wrecked, RoundReport(refused=1))
    assert (first.action, once.now) == ("idle", wrecked.now)
    twice, second = loop.update(once, RoundReport(refused=1))
    assert (second.action, twice.now, twice.mean, twice.idle) == ("rollback", begun.now, begun.now, 2)
    stayed, asked = loop.update(once, RoundReport(refused=1, refuted=True))
    assert (asked.action, stayed.now) == ("idle", wrecked.now)
    assert loop.update(twice, RoundReport(refused=1))[1].action == "idle"  # there is nowhere else to go
    fresh = twice._replace(now=Model(twice.now.weights, twice.now.statistics))  # as after a resume, or on another host
    assert loop.update(fresh, RoundReport(refused=1))[1].action == "idle"
    empty, _ = loop.update(wrecked, RoundReport())
    assert loop.update(empty, RoundReport(refused=1))[1].action == "idle"  # the first of its kind
    assert loop.update(twice, RoundReport(vector(0.5)))[0].idle == 0


def test_statistics_are_replaced_never_stepped_and_go_back_too() -> None:
    loop = ServerLoop(Scripted("good", "good", "damaged"))
    state = loop.init(vector(1.0), vector(7.0))
    state, _ = loop.update(state, RoundReport(vector(1.0), statistics=vector(8.0)))
    assert state.now.statistics == 8.0
    state, _ = loop.update(state, RoundReport(vector(1.0)))  # not reported: it stays
    assert state.now.statistics == 8.0
    state, _ = loop.update(state, RoundReport(vector(1.0), statistics=vector(99.0)))
    assert state.now == Model(vector(0.0), vector(8.0))


def test_a_step_of_exactly_delta_takes_the_aggregate_as_it_is() -> None:
    loop, aggregate = ServerLoop(Pair()), vector(0.3)
    state, _ = loop.update(loop.init(vector(1.0)), RoundReport(vector(0.7), aggregate=aggregate))
    assert state.now.weights is aggregate
    twice = ServerLoop(Pair(global_rule=Constant(lr=2.0)))
    state, _ = twice.update(twice.init(vector(1.0)), RoundReport(vector(0.75), aggregate=aggregate))
    assert state.now.weights == -0.5


def test_the_hosts_own_optimizer_takes_the_place_of_the_loops() -> None:
    stepped = vector(0.25)
    loop = ServerLoop(Pair(), Momentum())
    state, decision = loop.update(loop.init(vector(1.0)), RoundReport(vector(0.7), stepped=stepped))
    assert state.now.weights is stepped
    assert not decision.forget
    twice = ServerLoop(Pair(global_rule=Constant(lr=2.0)), Momentum())
    state, _ = twice.update(twice.init(vector(1.0)), RoundReport(vector(0.7), stepped=stepped))
    assert state.now.weights == -0.5  # 1 − 2 · (1 − 0.25)


@pytest.mark.parametrize("optimizer", [Adam(), Average(), Momentum(momentum=0.0)])
def test_a_direction_without_unit_is_given_a_multiple_of_the_length_of_delta(optimizer: Any) -> None:
    delta = vector(3.0, 4.0)
    loop = ServerLoop(Scripted("good", "good", graft=2.0), optimizer)
    state = loop.init(vector(0.0, 0.0))
    for _ in range(2):
        before = state.now.weights
        state, _ = loop.update(state, RoundReport(delta))
        step = np.linalg.norm(before - state.now.weights)
        assert step == pytest.approx(10.0 if optimizer.unitless else 5.0)
    zero, _ = loop.update(loop.init(vector(0.0, 0.0)), RoundReport(0 * delta))
    assert np.array_equal(zero.now.weights, vector(0.0, 0.0))


def test_fedexp_keeps_the_middle_of_the_last_two() -> None:
    loop = ServerLoop(PLANS["fedexp"])
    state = loop.init(vector(1.0))
    for _ in range(3):
        before = state.now.weights
        state, _ = loop.update(state, RoundReport(vector(0.5), sq_norm=0.25))
        assert state.mean.weights == pytest.approx((before + state.now.weights) / 2)


@pytest.mark.parametrize(("recency", "shares"), [(0.0, [1, 1 / 2, 1 / 3]), (1.0, [1, 2 / 3, 1 / 2])])
def test_the_mean_weighs_its_newest_round_by_recency(recency: float, shares: list[float]) -> None:
    mean = Model(vector(0.0))
    for k, share in enumerate(shares, 1):
        assert LastRounds(recency).update(mean, mean, Model(vector(1.0)), k).weights == pytest.approx(share)
    with pytest.raises(ValueError, match="recency"):
        LastRounds(-1.0)


def test_sq_norm_that_is_not_known_is_that_of_the_mean() -> None:
    plan = Scripted("good")
    ServerLoop(plan).update(ServerLoop(plan).init(vector(0.0, 0.0)), RoundReport(vector(3.0, 4.0)))
    assert plan.seen[0].sq_norm == 25.0
