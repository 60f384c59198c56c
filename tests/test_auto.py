"""The learning-rate-free plan: its parts by hand and by law, and toy problems from every start."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhyper import Auto, Momentum, RoundReport, Seen, Server, ServerLoop, auto
from fedhyper.automatic.damage import Damage
from fedhyper.automatic.follow import Follow
from fedhyper.automatic.ladder import HIGHEST, LOWEST, RUNGS, TRIED, Ladder
from fedhyper.plan import PlanState, Shape

ODD = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e300)

# --- the ladder ---------------------------------------------------------------------------------------------------


def climb(ladder: Ladder, trial: Callable[[float], tuple[float, Any]], start: int) -> tuple[int | None, float, Any]:
    """One client's climb, as hosts do it: ``trial(rate)`` gives score and round. Vote, gain, best round."""
    scores: dict[int, float] = {}
    rounds: dict[int, Any] = {}
    while (rung := ladder.next(scores, start)) is not None:
        scores[rung], rounds[rung] = trial(ladder.rate(rung))
    return ladder.vote(scores), ladder.gained(scores), rounds[ladder.best(scores)]


def tried(ladder: Ladder, curve: dict[int, float], start: int) -> list[int]:
    """The rungs a client tries, in order, when ``curve`` gives its scores; what is not in it blows up."""
    order = []

    def trial(rate: float) -> tuple[float, int]:
        rung = round(math.log(rate, ladder.ratio))
        order.append(rung)
        return curve.get(rung, math.inf), rung

    vote, _, best = climb(ladder, trial, start)
    assert vote is None or vote == best
    return order


def test_a_client_climbs_until_two_in_a_row_are_no_better() -> None:
    curve = {-3: 2.0, -2: 1.5, -1: 1.0, 0: 1.2, 1: 9.0, 2: 0.1}
    assert tried(Ladder(), curve, -3) == [-3, -2, -1, 0, 1]  # 2 is never tried: rates far too high all look alike
    found = climb(Ladder(), lambda rate: (curve.get(round(math.log(rate, 10**0.5)), math.inf), rate), -3)
    assert found[:2] == (-1, 1.0)


def test_a_client_goes_down_while_its_lowest_is_best() -> None:
    assert tried(Ladder(), {-5: 3.0, -4: 1.0, -3: 2.0}, -3) == [-3, -2, -1, -4, -5]


def test_a_client_climbs_on_while_nothing_makes_a_difference() -> None:
    """A loss in tiny units: at the first rates its weights, or its losses, do not change by a bit."""
    curve = dict.fromkeys(range(-8, 0), 2.0) | {0: 1.5, 1: 1.0, 2: 1.2, 3: 1.3}
    assert climb(Ladder(), lambda rate: (curve[round(math.log(rate, 10**0.5))], None), -8)[0] == 1
    assert tried(Ladder(), {}, -3)[:4] == [-3, -2, -1, -4]  # nothing survives: down


def test_a_client_to_which_the_rate_makes_no_difference_abstains() -> None:
    ladder = Ladder()
    assert climb(ladder, lambda rate: (2.0, None), 0)[0] is None
    assert climb(ladder, lambda rate: (math.nan, None), 0)[0] is None
    assert ladder.vote({0: 1.0, 1: 1.0}) is None


@given(st.dictionaries(st.integers(-6, 6), st.floats(), max_size=13), st.integers(-6, 6))
def test_every_climb_ends_inside_the_grid(curve: dict[int, float], start: int) -> None:
    order = tried(Ladder(), curve, start)
    assert len(order) == len(set(order)) <= HIGHEST - LOWEST + 1
    assert all(LOWEST <= rung <= HIGHEST for rung in order)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_where_climbing_begins_has_no_unit(scale: float) -> None:
    """Weights and updates in another unit begin at the same rung; a model that moves ten times as far, two lower."""
    ladder = Ladder()
    assert ladder.start(1e-3 * scale, 10 * scale) == ladder.start(1e-3, 10)
    assert ladder.start(1e-2 * scale, 10 * scale) == ladder.start(1e-3, 10) - 2
    assert {ladder.start(odd, 1.0) for odd in (math.nan, 0.0, math.inf)} == {ladder.rung(TRIED)}


@pytest.mark.parametrize(
    ("votes", "rung"),
    [
        ([-1], -1),
        ([-1, 0], -1),  #                              of two the lower
        ([-2, -1, 5], -1),  #                          of three the median
        ([-1] * 10, -1),
        ([-1] * 6 + [0] * 4, -1),
        ([-2, -1, -1, 0, 0, 0, 0, 1, 2, 3], -1 / 3),  # the mean of the third, fourth and fifth
        ([-20, -20, -20, 0, 0, 0, 0, 0, 0, 0], -1 / 3),  # -20 counts as a rung below the median: -1, 0, 0
    ],
)
def test_what_votes_lead_to(votes: list[int], rung: float) -> None:
    for order in list(permutations(votes))[:5]:
        assert Ladder().settle(order) == pytest.approx(10 ** (rung / 2))
    assert math.isnan(Ladder().settle([]))


@given(st.lists(st.integers(-3, 3), min_size=7, max_size=20), st.lists(st.integers(LOWEST, HIGHEST), max_size=3))
def test_a_minority_of_liars_moves_the_rate_a_rung_beyond_the_honest_at_most(
    honest: list[int], lies: list[int]
) -> None:
    rung = math.log(Ladder().settle([*honest, *lies]), 10**0.5)
    assert min(honest) - 1 - 1e-9 <= rung <= max(honest) + 1e-9


def test_votes_lead_to_a_rung() -> None:
    assert [Ladder().voted([rung] * 10) for rung in (-7, -2, 0, 1)] == [-7, -2, 0, 1]
    assert Ladder().voted([]) is None


@given(st.lists(st.integers(LOWEST, HIGHEST) | st.none(), min_size=1, max_size=60))
def test_votes_come_out_of_their_mean_as_they_went_in(votes: list[int | None]) -> None:
    mean = [sum(bins) / len(votes) for bins in zip(*map(Ladder.binned, votes), strict=True)]
    assert list(Ladder.counted(mean, len(votes))) == sorted(vote for vote in votes if vote is not None)
    assert list(Ladder.counted(np.float16(mean).tolist(), len(votes))) == list(Ladder.counted(mean, len(votes)))


def test_votes_count_by_their_weights_and_what_is_no_mean_of_votes_is_nobodys() -> None:
    three = [0.0] * RUNGS
    three[-1 - LOWEST], three[2 - LOWEST] = 0.7, 0.3  # two clients of ten voted −1, and have 7 of 10 examples
    assert Ladder.counted(three, 10) == (-1,) * 7 + (2,) * 3
    for lie in (math.nan, math.inf, -0.01, 1.01):
        assert Ladder.counted([lie, *three[1:]], 10) == ()
    assert Ladder.counted(three[1:], 10) == Ladder.counted([0.0] * RUNGS, 10) == ()


@given(st.lists(st.floats(-1, 1) | st.sampled_from(ODD[:3]), max_size=300))
def test_whatever_it_follows_the_rate_stays_within_the_factor(signals: list[float]) -> None:
    follow, c = Follow(), 0.0
    for t, h in enumerate(signals):
        c = follow.update(c, h, t)
        assert abs(c) <= math.log(follow.ratio) + 1e-12


def test_steps_shrink_and_a_wrong_sign_costs_a_power_of_the_rounds() -> None:
    follow = Follow(ratio=1e9, gain=2.0, wait=10.0)
    assert follow.update(0.0, 1.0, 0) == pytest.approx(0.2)
    assert follow.update(0.0, 1.0, 10) == pytest.approx(0.1)
    c = 0.0
    for t in range(1000):
        c = follow.update(c, -1.0, t)
    assert c == pytest.approx(-2 * math.log(1010 / 10), rel=0.05)  # not -200: neither frozen nor run away
    assert follow.update(0.3, math.nan, 5) == 0.3


# --- damage -------------------------------------------------------------------------------------------------------


def judged(rounds: list[list[float]], unit: float = 0.1, shift: float = 0.0) -> list[str]:
    rule = Damage()
    state, verdicts = rule.init(), []
    for losses in rounds:
        state = rule.update(state, [loss + shift for loss in losses], unit)
        verdicts.append(state.verdict)
    return verdicts


FALLING = [[2.3 - 0.2 * t] * 10 for t in range(8)]  # to 0.9


def test_most_clients_have_to_meet_it() -> None:
    assert judged([*FALLING, [0.9] * 5 + [9.0] * 5])[-1] == "good"  # the lower median
    assert judged([*FALLING, [0.9] * 4 + [9.0] * 6])[-1] == "damaged"
    assert judged([*FALLING, [0.9] * 4 + [math.nan] * 6])[-1] == "damaged"


def test_a_refuted_alarm_leaves_all_but_what_was_heard() -> None:
    rule = Damage()
    state = rule.init()
    for losses in FALLING:
        state = rule.update(state, losses, 0.0)
    assert rule.update(state, [9.0] * 10, 0.0).verdict == "damaged"
    refuted = rule.update(state, [9.0] * 10, 0.0, refuted=True)
    assert refuted == state._replace(heard=(), verdict="fair", rounds=0, worse=0)
    assert rule.update(refuted, [9.0] * 10, 0.0).verdict == "damaged"  # it may be asked again


def test_a_little_worse_is_no_damage() -> None:
    # recent is the median of the last ten, 1.5 here: damage begins at 0.8 of what was gained by then
    assert judged([*FALLING, [1.6] * 10])[-1] == "fair"
    assert judged([*FALLING, [2.1] * 10])[-1] == "fair"
    assert judged([*FALLING, [2.4] * 10])[-1] == "damaged"
    assert judged([*FALLING, [2.4] * 10], unit=2.0)[-1] == "fair"  # less than a client gains in a round
    wide = [[loss - 1, loss - 1, loss - 1, *[loss] * 4, loss + 1, loss + 1, loss + 1] for loss, *_ in FALLING]
    assert judged([*wide, [2.4] * 10])[-1] == "fair"  # clients differ by as much


@pytest.mark.parametrize("shift", [-10.0, 1000.0])
def test_only_differences_of_losses_count(shift: float) -> None:
    rounds = [*FALLING, [1.6] * 10, [2.4] * 10, [1.0] * 10]
    assert judged(rounds, shift=shift) == judged(rounds)


def test_without_a_loss_nothing_is_held_against_the_weights() -> None:
    assert judged([[], *FALLING, [], [2.4] * 10, []]) == ["good"] * 10 + ["damaged", "good"]


def test_with_one_client_a_round_ten_of_them_decide() -> None:
    healthy = [[2.3]] * 10 + [[1.0]] * 20
    assert "damaged" not in judged([*healthy, *[[50.0], [1.0], [1.0]] * 5])
    assert judged([*healthy, *[[50.0]] * 6])[-1] == "damaged"


def test_a_run_that_lies_above_its_beginning_is_harmed_and_the_next_span_is_twice_as_long() -> None:
    lost = [[2.0] * 10] + [[2.05] * 10] * 59
    verdicts = judged(lost)
    assert [t for t, verdict in enumerate(verdicts, 1) if verdict == "harmed"] == [10, 30]  # 10, 20, and 40 to come
    assert "good" not in verdicts[1:]  # nothing to return to but the beginning
    assert "harmed" not in judged([[2.0] * 10] + [[2.05] * 10, [1.95] * 10] * 30)  # half is not most
    assert "harmed" not in judged([[2.0] * 10] + [[1.9] * 6 + [9.0] * 4] * 30)  # nor can a minority say so


def test_few_clients_a_round_do_not_make_weights_good_by_what_was_heard_of_older_ones() -> None:
    assert judged([[2.3] * 3] * 3 + [[2.2] * 3])[-1] == "good"
    assert judged([[2.3] * 3] * 3 + [[50.0] * 3])[-1] == "fair"  # six of the last ten still speak of other weights


def test_before_anything_was_heard_the_weights_are_good_and_clients_do_not_differ() -> None:
    state = Damage().init()
    assert (state.verdict, state.width, state.heard, state.recent) == ("good", 0.0, (), ())


def test_a_gain_of_zero_holds_the_rate() -> None:
    assert Follow(gain=0.0).update(0.2, 1.0, 3) == 0.2


# --- the whole ----------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    plan = Auto(ratio=10.0, voices=3, gain=0.5)  # which is 1 for rungs twice as far apart as √10 in the logarithm
    state = plan.init()
    assert (state.local_lr, state.climbs) == (0.01, True)
    state = plan.update(state, Seen([1.0, 0.0], 0.0, (2.0, 2.0), 1.0, ((-2, 0.5), (-1, 0.5)), climbed=True))
    assert state.local_lr == pytest.approx(0.01)  # two votes, the lower one; nothing to compare with
    assert state.climbs
    state = plan.update(state, Seen([1.0, 0.0], [1.0, 0.0], (1.9,), 1.0, ((-1, 0.5),), climbed=True))
    assert not state.climbs
    assert state.local_lr == pytest.approx(0.1 * math.exp(1 / 4))  # -1, the median of three; h = 1, 1/(1 + 3)
    state = plan.update(state, Seen([-1.0, 0.0], [1.0, 0.0], (1.8, 1.8, 1.8), 1.0))
    assert state.hypergrad == -1.0
    assert state.local_lr == pytest.approx(0.1 * math.exp(1 / 4 - 1 / 5))
    state = plan.update(state, Seen([1.0, 0.0], [1.0, 0.0], (9.0, 9.0, 9.0), 1.0))
    assert state.verdict == "damaged"
    assert state.local_lr == pytest.approx(0.01)  # a rung lower, and no more above the ladder's
    healed = plan.update(state, Seen([1.0, 0.0], 0.0, (1.8, 1.8, 1.8), 1.0))
    assert healed.local_lr == pytest.approx(0.1 * 10 ** (-1 + 1 / (4 + 3)))  # 1/(t + voices) of it back


def test_the_global_rate_is_above_one_where_that_was_looked_at_and_not_longer() -> None:
    plan = Auto(ratio=10.0, voices=2)
    begin = Seen([1.0], 0.0, (2.0, 2.0), 1.0, ((-1, 0.5),) * 2, climbed=True, shape=Shape(4, 0, 4))
    state, rates = plan.update(plan.init(), begin), []
    for _ in range(5):
        rates.append(state.global_lr)
        state = plan.update(state, Seen([1.0], 0.0, (1.0, 1.0), 1.0))
    assert rates == [100.0] * 4 + [1.0]  # four rounds were seen, a longer run was not
    state = plan.update(plan.init(), begin)
    assert plan.update(plan.nonsense(state), Seen([1.0], 0.0, (1.0, 1.0), 1.0)).global_lr == 1.0
    harmed, rates = state, []
    for _ in range(3):
        harmed = plan.update(harmed, Seen([1.0], 0.0, (2.01, 2.01), 1.0))
        rates.append(harmed.global_lr)
    assert rates[0] == 100.0
    assert rates[-1] == 1.0  # above where it began for as long as two voices are heard: the start was wrong
    good = plan.update(state, Seen([1.0], 0.0, (1.0, 1.0), 1.0))
    damaged = plan.update(good, Seen([1.0], 0.0, (9.0, 9.0), 1.0))
    assert (good.global_lr, damaged.verdict) == (100.0, "damaged")
    assert plan.update(damaged, Seen([1.0], 0.0, (1.0, 1.0), 1.0)).global_lr == 1.0


def test_a_local_rate_that_falls_does_so_until_the_last_round_that_was_seen() -> None:
    plan = Auto(ratio=10.0, voices=2, gain=0.0)
    begin = Seen([1.0], 0.0, (2.0, 2.0), 1.0, ((-1, 0.5),) * 2, climbed=True, shape=Shape(2, 2, 5))
    state, rates = plan.update(plan.init(), begin), [0.1]  # the first round's rate is the one that was voted for
    for _ in range(5):
        rates.append(state.local_lr)
        state = plan.update(state, Seen([1.0], 0.0, (1.0, 1.0), 1.0))
    assert rates == pytest.approx([0.1 * 10**-fallen for fallen in (0, 0.5, 1, 1.5, 2, 0)])
    state = plan.update(plan.init(), begin)
    for _ in range(2):
        state = plan.update(state, Seen([1.0], 0.0, (1.0, 1.0), 1.0))
    damaged = plan.update(state, Seen([1.0], 0.0, (9.0, 9.0), 1.0))
    assert damaged.local_lr == pytest.approx(0.1 * 10 ** -(2 + 1))  # what has fallen is not risen to by going back
    assert damaged.global_lr == plan.update(damaged, Seen([1.0], 0.0, (1.0, 1.0), 1.0)).global_lr == 1.0


def test_harm_lowers_the_rate_for_good_and_the_start_does_not_count() -> None:
    plan = Auto(ratio=10.0, voices=3, gain=0.0)
    state = plan.init()
    for loss in (2.0, 2.5, 2.0):  # rates are being tried out
        state = plan.update(state, Seen([1.0], 0.0, (loss,), 1.0, ((-1, 0.1),), climbed=True))
    rates = []
    for _ in range(12):
        state = plan.update(state, Seen([1.0], 0.0, (2.05,) * 3, 1.0))
        rates.append(state.local_lr)
    assert rates == pytest.approx([0.1] + [0.01] * 6 + [0.001] * 5)  # the round of the last vote is the first of three
    assert state.verdict == "fair"


def test_a_host_that_shows_no_votes_stays_near_the_hint() -> None:
    plan, state = auto(local_lr=0.02, global_lr=0.5), auto(local_lr=0.02, global_lr=0.5).init()
    for t in range(200):
        agree = [0.5, math.sqrt(0.75)] if t % 2 else [-0.5, math.sqrt(0.75)]
        state = plan.update(state, Seen(agree, [1.0, 0.0], (1.0,), 1.0))
        assert not state.climbs
        assert 0.01 / 10 <= state.local_lr <= 0.01 * 10


def test_where_the_start_tells_little_a_rate_far_too_low_rises_a_rung_a_round_for_a_while() -> None:
    """Updates that are one and the same say that nothing has happened yet; clients that climbed know better."""
    plan = auto(local_lr=1e-6)
    for climbed, highest in ((False, 1e4), (True, 0.1 * 10**0.5)):
        state = plan.update(plan.init(), Seen([1.0], 0.0, (1.0,), 1.0, ((-2, 0.1),) * 10 if climbed else None, climbed))
        for _ in range(100):
            state = plan.update(state, Seen([1.0], [1.0], (1.0,), 1.0))
        assert state.local_lr == pytest.approx(highest, rel=0.01) if climbed else 1e3 < state.local_lr < 1e6


def test_where_clients_train_once_the_start_waits_until_the_best_has_neighbours() -> None:
    plan, seen = auto(), Seen(0.0, losses=(2.0, 2.1, 1.9))
    state = plan.update(plan.init(), seen._replace(votes=((-10, 0.0), (-4, 0.2), (2, -5.0))))
    assert (state.climbs, state.local_lr, state.tried) == (True, 0.01, ((-10, 0.0), (-4, 0.2), (2, -5.0)))
    state = plan.update(state, seen._replace(votes=((-6, 0.1), (-2, 0.5), (0, 0.3))))
    assert state.climbs is False
    assert state.local_lr == pytest.approx(0.1)
    assert state.memory.damage.first == 2.0
    assert state.tried == ()


def test_the_start_ends_when_the_run_is_too_short_for_more_and_when_nothing_can_be_told() -> None:
    plan = auto()
    early = plan.update(plan.init(), Seen(0.0, votes=((-10, 0.0), (-4, 0.2), (2, -5.0)), enough=True))
    assert (early.climbs, early.local_lr) == (False, pytest.approx(0.01))
    for votes in ((), ((-10, 0.0), (-4, 0.0), (2, 0.0)), ((-10, math.nan),)):
        nothing = plan.update(plan.init(), Seen(0.0, losses=(1.0,), votes=votes))
        assert (nothing.climbs, nothing.local_lr) == (False, 0.01)
    state = plan.init()
    for _ in range(10):  # one client a round whose gains lead upwards without end
        assert state.climbs
        state = plan.update(state, Seen(0.0, votes=((len(state.tried) - 4, 1.0 + len(state.tried)),)))
    assert state.climbs is False


def begun(
    losses: tuple[float, ...] = (2.0, 2.1, 1.9, 2.0), votes: tuple[tuple[int, float], ...] | None = None
) -> PlanState:
    """A run whose clients trained once: rung -2 was found, it gained 0.5, and clients differ by 0.1."""
    found = ((-4, 0.1), (-2, 0.5), (0, -0.4)) if votes is None else votes
    return auto().update(auto().init(), Seen(0.0, losses=losses, votes=found, enough=True))


def test_a_first_step_that_wrecks_the_model_is_undone_at_once_and_costs_a_rung_at_most_three_times() -> None:
    plan, state, rates = auto(), begun(), []
    wrecked = Seen([1.0], [1.0], (9.0, 9.0, 4.2))
    for _ in range(5):
        state = plan.update(state, wrecked)
        rates.append(state.local_lr)
        if state.verdict != "damaged":
            break
    assert rates[:3] == pytest.approx([10**-1.5, 10**-2, 10**-2.5])
    assert min(rates) > 0.1 * 10**-1.6
    # of two clients, or not four times as far up as a client gains: it is not
    assert plan.update(begun(), wrecked._replace(losses=(9.0, 9.0))).verdict != "damaged"
    assert plan.update(begun(), wrecked._replace(losses=(3.9, 3.9, 3.9))).verdict != "damaged"


def test_the_rate_rises_only_while_nothing_happens() -> None:
    plan = auto()

    def after(losses: tuple[float, ...], h: float, state: PlanState) -> float:
        return plan.update(state, Seen([h, math.sqrt(1 - h * h)], [1.0, 0.0], losses)).local_lr / state.local_lr

    assert after((2.0, 2.0, 2.0), 0.95, begun()) > 3  # the last update over again
    assert after((1.5, 1.5, 1.5), 0.95, begun()) < 1.3  # the same, but it helps
    assert after((2.0, 2.0, 2.0), 0.5, begun()) < 1.3
    told_nothing = begun(votes=((-4, 0.0), (-2, 0.0), (0, 0.0)))
    assert after((2.0,) * 9, 0.0, told_nothing) == 1
    assert after((2.0,) * 10, 0.0, told_nothing) == pytest.approx(10**0.5)  # ten have been heard, and nothing happened
    assert after((2.0,) * 10, 0.0, begun()) == 1
    # clients may differ by more than there is to gain: then losses never say that something happens, but damage does
    damaged = told_nothing._replace(memory=told_nothing.memory._replace(times=1))
    assert after((2.0,) * 10, 0.0, damaged) == 1


def test_where_every_rate_that_was_tried_diverges_the_one_that_was_given_is_not_begun_at() -> None:
    lost, hint = -1e30, auto(local_lr=0.1)

    def begins(*votes: tuple[int, float]) -> float:
        return hint.update(hint.init(), Seen(0.0, losses=(2.0, 2.0), votes=votes, enough=True)).local_lr

    assert begins((-6, lost), (-2, lost)) == pytest.approx(10**-3.5)
    assert begins((0, lost), (2, lost)) == pytest.approx(0.1)  # it is lower than any of them
    assert begins((-6, 0.0), (-2, lost)) == pytest.approx(0.1)


def test_one_liar_of_three_or_four_does_not_say_how_far_clients_differ() -> None:
    for honest in ((1.9, 2.0), (1.9, 2.0, 2.1)):
        for lie in (-1e9, 1e9, math.nan, math.inf):
            assert Damage().meet(Damage().init(), (*honest, lie)).margin < 1.5
    assert Damage().meet(Damage().init(), (1.0, 2.0, 3.0)).margin == 2.0


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats() | st.sampled_from(ODD), max_size=4),
            st.floats(),
            st.none() | st.lists(st.tuples(st.integers(-99, 99), st.floats()), max_size=4),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_input_leaves_the_rate_finite_and_inside_the_stated_range(rounds: list) -> None:  # type: ignore[type-arg]
    """From a rung below the lowest to one above the highest rate of the grid, two lower after damage and one
    more for each harm, two in 40 rounds; where the start tells little, four rungs and 20 more upwards."""
    plan = auto()
    state = plan.init()
    low, high = 10 ** ((LOWEST - 9) / 2), 10 ** ((HIGHEST + 4 + 20) / 2)
    for losses, entry, votes, nonsense in rounds:
        if nonsense:
            state = plan.nonsense(state)
        else:
            shown = None if votes is None else tuple(votes)
            state = plan.update(state, Seen([entry, 1.0], [1.0, 0.0], tuple(losses), 1.0, shown))
        assert low * 0.99 <= state.local_lr <= high * 1.01
        assert state.global_lr == 1.0


def test_pure() -> None:
    plan, seen = auto(), Seen(np.array([0.1, 0.2]), 0.0, (1.0,) * 10, 1.0, ((-1, 0.1),) * 10)
    once, twice = plan.update(plan.init(), seen), plan.update(plan.init(), seen)
    assert once == twice


def test_momentum_grows_to_its_value() -> None:
    assert auto().optimizer == Momentum(momentum=0.8, warmup=2.0)
    state, shares = Momentum(momentum=0.8, warmup=2.0).init(), []
    for _ in range(12):
        before = state.mean
        direction, state = Momentum(momentum=0.8, warmup=2.0).update(state, 1.0)
        shares.append((direction - 1.0) / before if before else 0.0)
    assert shares == pytest.approx([min(0.8, k / (k + 2)) for k in range(12)])


CURVATURE = np.geomspace(0.1, 3.0, 20)


def train(lr: float, noise: float, rounds: int = 60, clients: int = 13, shift: float = 0.0) -> tuple[float, int]:
    """Clients with five steps each on Σ c_i (w_i − o_i)²/2, their minima o near 1: the loss left, and the rollbacks."""
    rng, server, back = np.random.default_rng(0), Server(np.zeros(20), auto(local_lr=lr)), 0
    for _ in range(rounds):
        optima = 1 + noise * rng.standard_normal((clients, 20))
        local = np.tile(server.weights, (clients, 1))
        rates, losses = np.array(server.rates(clients))[:, None], []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(5):
                losses.append((CURVATURE * (local - optima) ** 2).sum(1) / 2 + shift)
                local = local - rates * CURVATURE * (local - optima)
            means = np.mean(losses, 0)
        back += server.step(list(server.weights - local), loss=losses[0], train_loss=means).action == "rollback"
    return float((CURVATURE * (server.averaged - 1) ** 2).sum() / 2), back


@pytest.mark.parametrize("clients", [13, 4])
@pytest.mark.parametrize(("noise", "reached"), [(0.0, 1e-2), (0.5, 0.5)])
def test_a_healthy_run_ends_well_and_never_goes_back(noise: float, reached: float, clients: int) -> None:
    loss, back = train(0.01, noise, clients=clients)
    assert loss < reached  # from 8.6
    assert back <= (noise > 0 and clients < 10)  # ten clients that differ are an odd ten at times


def test_every_start_reaches_the_same_loss() -> None:
    assert len({train(lr, 0.1) for lr in (1e-6, 1e-2, 100.0)}) == 1


def test_the_loop_takes_its_optimizer_and_mean_from_the_plan() -> None:
    loop = ServerLoop(Auto(momentum=0.5, recency=0.0))
    state = loop.init(np.zeros(1))
    for _ in range(3):
        state, _ = loop.update(state, RoundReport(np.ones(1)))
    # steps 1, 1 + 1/3, 1 + 1/2 · 4/3; the mean of the three weights
    assert state.now.weights == pytest.approx(-(1 + 4 / 3 + 5 / 3))
    assert state.mean.weights == pytest.approx(-(1 + 7 / 3 + 4) / 3)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("local_lr", 0.0),
        ("ratio", 1.0),
        ("voices", 0),
        ("ahead", 0),
        ("share", 1.5),
        ("momentum", 1.0),
        ("recency", -1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        Auto(**{setting: value})
