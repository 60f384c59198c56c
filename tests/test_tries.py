"""The start where clients train once a round: which rates are tried, and what they lead to."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder
from fedhyper.automatic.tries import LOST, Tries, gains_of, untold


def found(rungs: list[int], gains: list[float]) -> tuple[int, int, float] | None:
    """The rung to begin with, the one that gained most, and how much."""
    return Tries(Ladder(), tuple(zip(rungs, gains, strict=True))).best()


def test_the_first_round_spans_what_rates_may_be() -> None:
    tries = Tries(Ladder())
    assert tries.spread(13) == list(range(2, -11, -1))
    assert tries.spread(10) == [2, 0, -2, -4, -6, -8, -10, 2, 0, -2]  # what is left over goes to the highest
    assert tries.spread(3) == [2, -4, -10]
    assert (tries.spread(2), tries.spread(1)) == ([-6, -2], [-4])
    assert set(tries.spread(40)) == set(tries.spread(13))


def test_the_next_rounds_look_between_the_best_and_its_neighbours() -> None:
    tries = Tries(Ladder(), ((-10, 0.0), (-4, 0.2), (2, -9.0)))
    assert (tries.done, tries.spread(3)) == (False, [-2, 0, -7])  # two above, one below
    assert tries.spread(1) == [-1]  # the middle of the gap above
    closer = Tries(Ladder(), (*tries.tried, (-2, 0.6), (0, 0.1), (-7, 0.0)))
    assert closer.done  # -2 has neighbours at -4 and 0
    assert Tries(Ladder(), ((-4, 0.0), (-2, 0.3), (0, 0.5))).spread(2) == [2, 4]  # the highest is best: beyond it
    assert not Tries(Ladder(), ((-4, 0.5), (-2, 0.3), (0, 0.1))).done  # or the lowest


@given(st.lists(st.tuples(st.integers(-12, 4), st.floats(-9, 9)), min_size=1, max_size=30), st.integers(1, 30))
def test_what_is_tried_next_is_on_the_grid_and_new_until_it_is_done(tried: list[tuple[int, float]], n: int) -> None:
    tries = Tries(Ladder(), tuple(tried))
    wanted = tries.spread(n)
    assert len(wanted) == n
    assert all(LOWEST <= rung <= HIGHEST for rung in wanted)
    if not tries.done:
        assert set(wanted) - {rung for rung, _ in tried}


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5, 7, 10, 20, 50])
def test_a_peak_is_found_within_two_rungs_in_a_few_rounds(clients: int) -> None:
    for peak in range(-6, 3):
        tries, rounds = Tries(Ladder()), 0
        while rounds == 0 or not tries.done:
            rungs = tries.spread(clients)
            gains = [10.0 ** (rung - peak) if rung <= peak else -(10.0 ** (rung - peak)) for rung in rungs]
            tries, rounds = Tries(Ladder(), (*tries.tried, *zip(rungs, gains, strict=True))), rounds + 1
        best = tries.best()
        assert best is not None
        assert peak - 2 <= best.rung <= peak
        assert rounds <= {1: 9, 2: 6, 3: 4, 4: 4}.get(clients, 3)


def test_from_the_best_down_the_lowest_that_gains_four_fifths_of_it_is_found() -> None:
    rungs = [-10, -8, -6, -4, -2, 0, 2]
    assert found(rungs, [0.0, 0.0, 0.1, 0.5, 0.85, 1.0, -3.0]) == (-2, 0, 1.0)
    assert found(rungs, [0.0, 0.0, 0.1, 0.5, 0.75, 1.0, -0.5]) == (0, 0, 1.0)
    assert found(rungs, [0.0, 0.0, 0.1, 0.5, 0.75, 1.0, -4.0]) == (-1, 0, 1.0)  # harm may begin at 1
    assert found(rungs, [0.0, 0.0, 0.9, 0.5, 0.85, 1.0, -3.0]) == (-2, 0, 1.0)  # an odd client far below
    for order in list(permutations(range(7)))[::99]:
        gains = [0.0, 0.0, 0.1, 0.5, 0.85, 1.0, -3.0]
        assert found([rungs[i] for i in order], [gains[i] for i in order]) == (-2, 0, 1.0)
    assert found([-10, -8, -4, 0, 2], [0.0, 0.0, -0.1, -1.0, -LOST]) is None
    harmful = Tries(Ladder(), ((-4, -1.0), (-2, -2.0), (0, -LOST)))
    assert (harmful.done, harmful.spread(2)) == (False, [-7, -5])  # every rate does harm: further down


def test_nothing_counts_above_a_rate_that_does_harm() -> None:
    """One of four clients has one class: it gains at 10, and at 100."""
    rungs, gains = [-10, -6, -2, -1, 1, 2, 4, 6], [0.09, 1.85, 1.71, 0.78, -1.9, 2.07, 2.07, -1e8]
    assert found(rungs, gains) == (-6, -6, 1.85)
    assert found(rungs, [*gains[:4], -0.5, *gains[5:]]) == (2, 2, 2.07)  # of a small loss it may be


def test_it_is_not_next_to_a_rate_that_does_harm() -> None:
    rungs = [-10, -7, -4, -3, -2, -1, 0, 1, 2]
    gains = [0.0, 0.01, 0.16, 0.35, 0.32, 0.25, 0.46, -1.7, -28.0]
    assert found(rungs, gains) == (-1, 0, 0.46)
    assert found(rungs, [*gains[:7], -0.4, -28.0]) == (0, 0, 0.46)  # that loses little


def test_a_peak_that_one_client_alone_speaks_of_counts_by_its_neighbours() -> None:
    rungs = [-10, -8, -6, -4, -2, 0, 2]
    gains = [0.0, 0.0, 1e9, 0.01, 0.3, 0.4, -5.0]
    assert found(rungs, gains) == (-1, 0, 0.4)  # nine times 0.01 at most, two rungs away
    assert found([*rungs, -6], [*gains, 1e9]) == (-6, -6, 1e9)  # two say so


def test_where_nothing_stands_out_from_those_that_hardly_moved_the_highest_that_does_no_harm_is_found() -> None:
    rungs = [-10, -7, -4, -1, 2]  # five clients of an app whose loss stays at that of guessing in the first round
    for gains in ([0.0043, -0.0043, 0.0075, -0.0008, -9.1], [0.002, -0.002, -0.0093, -0.0082, -9.1]):
        assert found(rungs, gains) == (-2, -1, 0.0)
    assert found(rungs, [0.0043, -0.0043, 0.0075, 0.15, -9.1]) == (-2, -1, pytest.approx(0.15))
    assert found(rungs, [0.0] * 5) is None
    # ten clients of two steps each: the lowest seems best, by chance, and those above it gain and lose
    rungs, gains = (
        [-10, -8, -6, -4, -2, -2, 0, 0, 2, 2],
        [0.005, 0.003, -0.007, -0.018, -0.002, 0.038, -0.09, 0.02, -3, -3],
    )
    assert found(rungs, gains) == (-3, -2, 0.0)
    # clients with one class gain at every rate, from the lowest on: that is no noise
    assert found([-10, -7, -4, -1, 2], [0.9, 1.8, 2.3, 2.4, 1.4]) == (-4, -1, 2.4)


def test_what_clients_gain() -> None:
    rungs = [-4, -2, 0, 2]
    assert gains_of(rungs, [1.9, 1.0, math.nan, 8.0], [2.0] * 4) == pytest.approx([0.1, 1.0, -LOST, -6.0])
    assert gains_of(rungs, [1.9, 1.0, 1.5, 8.0], [2.0, None, 2.2, 2.4]) == pytest.approx([0.1, 1.2, 0.7, -5.6])
    # nobody says what it began with: the lowest third of the rungs hardly moved, or earlier rounds have said
    assert gains_of([-10, -2, 0, 2], [2.0, 1.0, 1.5, 8.0], [None] * 4) == pytest.approx([0.0, 1.0, 0.5, -6.0])
    assert gains_of(rungs, [2.0, 1.0, 1.5, 8.0], [None] * 4, 2.1) == pytest.approx([0.1, 1.1, 0.6, -5.9])
    assert gains_of([-4], [2.0], [2.0 + 1e-7]) == [0.0]  # what float32 cannot tell is no gain


@given(st.lists(st.floats(-4, 4), min_size=5, max_size=5), st.sampled_from([-100.0, -3.0, 0.0, 1e3]))
def test_only_differences_of_losses_count(means: list[float], shift: float) -> None:
    rungs = [-8, -6, -4, -2, 0]
    plain = gains_of(rungs, means, [0.5] * 5)
    moved = gains_of(rungs, [mean + shift for mean in means], [0.5 + shift] * 5)
    assert moved == pytest.approx(plain, abs=2e-3)


@given(st.integers(0, 9), st.sampled_from([-1e9, 1e9, math.nan, math.inf]))
def test_one_liar_of_ten_moves_what_is_found_by_two_rungs_at_most(liar: int, lie: float) -> None:
    tries = Tries(Ladder())
    rungs = tries.spread(10)
    means = [2.0 - (10.0 ** (rung / 2) if rung <= 0 else -9.0) for rung in rungs]
    honest = Tries(Ladder(), tuple(zip(rungs, gains_of(rungs, means, [2.0] * 10), strict=True))).best()
    means[liar] = lie
    lied = Tries(Ladder(), tuple(zip(rungs, gains_of(rungs, means, [2.0] * 10), strict=True))).best()
    assert honest is not None
    assert lied is not None
    assert abs(lied.rung - honest.rung) <= 2


def test_whose_updates_make_the_first_step() -> None:
    tries = Tries(Ladder(), ((-10, 0.0), (-6, 0.1), (-4, 0.5), (-2, 1.0), (0, -LOST)))
    assert tries.used([-6, -4, -3, -2, 0, -4], [0.1, 0.5, 0.7, 1.0, -LOST, -LOST]) == {1, 2}  # -3 was found
    cut_short = Tries(Ladder(), ((-10, 0.0), (-4, 0.9), (-1, 1.0), (2, -9.0)))
    assert (cut_short.best(), cut_short.done, cut_short.found) == ((-4, -1, 1.0), False, -3)
    short = Tries(Ladder(), tries.tried, short=True)  # momentum does not grow in a few rounds
    assert (tries.found, short.found) == (-3, -2)
    assert short.used([-6, -4, -3, -2, 0], [0.1, 0.5, 0.7, 1.0, -LOST]) == {1, 2, 3}
    nothing = Tries(Ladder(), ((-6, 0.0), (-4, 0.0), (-2, 0.0)))
    assert nothing.used([-6, -4, -2], [0.0] * 3) == frozenset()


def test_a_round_that_tells_nothing_leaves_a_short_run_at_its_own_rate() -> None:
    ladder, rungs = Ladder(), [-10, -10, -8, -8, -6, -6, -4, -2, 0, 2]
    gains = [0.005, -0.005, -0.005, 0.005, 0.005, -0.005, -0.01, -0.012, -0.035, -0.6]  # nobody gains twice 0.01
    own = untold(ladder, rungs, gains, 0.002)
    assert own == {2, 3, 4, 5}  # at the rung below 0.002, which is -6, and two below that
    for liar in (-LOST, 1e9):  # one of those that hardly moved
        assert untold(ladder, rungs, [liar, *gains[1:]], 0.002) == own
    assert untold(ladder, rungs, gains, 10.0) == frozenset()  # that rate did harm
    assert untold(ladder, rungs, [*gains[:7], 0.1, *gains[8:]], 0.002) == frozenset()  # this one stands out
    assert untold(ladder, [-10, -7, -4, -1, 2], [0.0, 0.01, 0.0, -0.01, -3.0], 0.002) == frozenset()  # a first look
    assert untold(ladder, rungs, [-LOST] * 10, 0.002) == frozenset()


@pytest.mark.parametrize("lie", [-1e6, -LOST])
@pytest.mark.parametrize("clients", [10, 11, 12, 13])
def test_one_client_that_claims_harm_does_not_void_the_rates_above_it(clients: int, lie: float) -> None:
    """Of an honest round that gains threefold a rung up to 0.1, whoever lies: not even four rungs from it."""
    tries = Tries(Ladder())
    rungs = tries.spread(clients)
    gains = [3.0 ** (rung + 2) if rung <= -2 else -(3.0 ** (rung + 2)) for rung in rungs]
    honest = found(rungs, gains)
    assert honest is not None
    for liar in range(clients):
        lied = found(rungs, [lie if i == liar else gain for i, gain in enumerate(gains)])
        assert lied is not None
        assert honest[0] - 4 <= lied[0] <= honest[0] + 1


def test_what_one_of_two_that_hardly_moved_lost_is_no_noise() -> None:
    rungs, gains = [-10, -8, -6, -4, -2, 0, 2], [0.0, 1e-4, 0.01, 0.1, 0.4, -1.0, -9.0]
    honest = found(rungs, gains)
    assert honest == (-2, -2, 0.4)
    assert found(rungs, [-LOST, *gains[1:]]) == honest
    assert found(rungs, [gains[0], -LOST, *gains[2:]]) == honest


def test_where_every_rate_does_the_same_harm_lower_ones_are_tried() -> None:
    assert max(Tries(Ladder(), ((-6, -LOST), (-2, -LOST))).spread(2)) < -2
    assert max(Tries(Ladder(), ((-6, 0.0), (-2, 0.0))).spread(2)) > -2  # and higher ones where none does anything
