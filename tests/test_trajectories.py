"""Rates worked out by hand, with the working beside them, and what the published code gets wrong."""

from __future__ import annotations

import math

import pytest

from fedhyper import Constant, Decay, FedExP, FedHyperCL, FedHyperG, FedHyperSL, Pair, Scheduler, Seen
from fedhyper.schedulers import Rule


def rates(rule: Rule, *steps: tuple[object, ...]) -> list[float]:
    """The rate after each step."""
    scheduler = Scheduler(rule)
    return [scheduler.step(*step) for step in steps]


def test_g() -> None:
    expected = [
        1.0,  #  nothing to compare with
        1.5,  #  1   + <(.5, .5), (1, 0)>  = 1 + .5
        1.0,  #  1.5 + <(-1, 0), (.5, .5)> = 1.5 - .5
        1 / 3,  # 1  + <(4, 0), (-1, 0)>   = 1 - 4 = -3, clipped to 1/3
    ]
    assert rates(FedHyperG(lr=1.0, bound=3.0), ([1, 0],), ([0.5, 0.5],), ([-1, 0],), ([4, 0],)) == expected


def test_g_continues_from_the_clipped_rate() -> None:
    expected = [
        1.0,
        3.0,  #  1 + <(2, 0), (2, 0)> = 5, clipped to 3
        3.0,  #  3 + 4, clipped again
        2.0,  #  3 - <(.5, 0), (2, 0)> = 3 - 1; from the unclipped 9 it would still be 3
    ]
    assert rates(FedHyperG(lr=1.0, bound=3.0), ([2, 0],), ([2, 0],), ([2, 0],), ([-0.5, 0],)) == expected


def seen(delta: list[float]) -> Seen:
    return Seen(delta, 0.0, None, 0.0)


def test_sl_is_used_in_the_next_round() -> None:
    plan = Pair(local_rule=FedHyperSL(lr=0.01, bound=10.0))
    state, used = plan.init(), []
    for delta in ([0.1, 0.0], [0.1, 0.0], [-0.2, 0.0], [0.1, 0.0]):
        used.append(state.local_lr)  # what the clients of this round train with
        state = plan.update(state, seen(delta))
        assert state.global_lr == 1.0
    assert used == pytest.approx(
        [
            0.01,  #  the initial one
            0.01,  #  round 1 had nothing to compare with
            0.02,  #  after round 2: .01 + <(.1, 0), (.1, 0)> = .01 + .01
            0.001,  # after round 3: .02 - .02 = 0, clipped to .01 / 10
        ],
        rel=1e-12,
    )


def test_g_acts_on_the_delta_it_has_just_seen() -> None:
    plan = Pair(global_rule=FedHyperG(lr=1.0, bound=3.0), local_rule=FedHyperSL(lr=1.0, bound=3.0))
    state = plan.update(plan.init(), seen([1.0, 0.0]))
    state = plan.update(state, seen([0.5, 0.5]))
    assert (state.global_lr, state.hypergrad) == (1.5, 0.5)  # for this round's delta
    assert state.local_lr == 1.5  # for the next round's clients: the same hypergradient


def test_sl_is_no_no_op_across_rounds() -> None:
    """The published code makes its list of local rates anew at the top of every round: what SL computed is lost."""

    def run(keep: bool) -> list[float]:
        plan = Pair(local_rule=FedHyperSL(lr=0.1, bound=10.0))
        weight, state, used = 1.0, plan.init(), []
        for _ in range(4):
            used.append(state.local_lr)
            delta = [state.local_lr * weight]  # one step on w²/2
            weight -= delta[0]
            state = plan.update(state, seen(delta))
            if not keep:
                state = plan.init()
        return used

    assert run(keep=False) == [0.1] * 4  # their bug
    assert run(keep=True) == pytest.approx(
        [
            0.1,
            0.1,  #             delta .1,  w .9
            0.109,  #           delta .09, w .81; .1 + .09 · .1 = .109
            0.109 + 0.0079461,  # delta .109 · .81 = .08829; .08829 · .09 = .0079461
        ],
        rel=1e-12,
    )


DELTA = [0.2, 0.0]
STEPS = [([1.0, 0.0], DELTA), ([0.5, 0.5], DELTA), ([-1.0, 1.0], DELTA), ([-3.0, 0.0], DELTA)]


def test_cl_adds_the_global_term() -> None:
    expected = [
        0.1,  #   step 0 uses exactly the rate that was sent, although <g, Δ> = .2
        0.65,  #  .1  + <(.5, .5), (1, 0)>   + <(.5, .5), (.2, 0)> / 2 = .1 + .5 + .05
        0.55,  #  .65 + <(-1, 1), (.5, .5)>  + <(-1, 1), (.2, 0)> / 2  = .65 + 0 - .1
        1.0,  #   .55 + <(-3, 0), (-1, 1)>   + <(-3, 0), (.2, 0)> / 2  = .55 + 3 - .3 = 3.25, clipped to .1 · 10
    ]
    assert rates(FedHyperCL(lr=0.1, bound=10.0, local_steps=2), *STEPS) == pytest.approx(expected, rel=1e-12)


def test_cl_multiplies_by_the_sign() -> None:
    rule = FedHyperCL(lr=0.1, bound=10.0, local_steps=2, global_term="sign", epsilon=0.1)
    expected = [
        0.1,
        0.65,  #  .1  + .5 · (1 + .1), agreeing with Δ
        0.65,  #  .65 + 0
        0.83,  #  .65 + <(-.1, .1), (-1, 1)> · (1 - .1) = .65 + .2 · .9, opposing Δ
        0.85,  #  .83 + <(0, .2), (-.1, .1)> · 1 = .83 + .02, neither
    ]
    steps = [*STEPS[:3], ([-0.1, 0.1], DELTA), ([0.0, 0.2], DELTA)]
    assert rates(rule, *steps) == pytest.approx(expected, rel=1e-12)


def test_cl_without_the_global_term() -> None:
    rule = FedHyperCL(lr=0.1, bound=10.0, local_steps=2, global_term="off")
    steps = [*STEPS[:3], ([-0.1, 0.1], DELTA)]
    # .1; .1 + .5; .6 + 0; .6 + <(-.1, .1), (-1, 1)>
    assert rates(rule, *steps) == pytest.approx([0.1, 0.6, 0.6, 0.8], rel=1e-12)
    assert rates(rule, *[(grad,) for grad, _ in steps]) == rates(rule, *steps)


def test_cl_has_no_global_term_in_the_first_round() -> None:
    rule = FedHyperCL(lr=0.1, bound=10.0, local_steps=2)
    assert rates(rule, ([1.0, 0.0],), ([0.5, 0.5],)) == pytest.approx([0.1, 0.6], rel=1e-12)


def test_cl_on_plain_numbers() -> None:
    # .1; .1 + .5 · 1 + .5 · .2 / 2
    assert rates(FedHyperCL(lr=0.1, bound=10.0, local_steps=2), (1.0, 0.2), (0.5, 0.2)) == pytest.approx([0.1, 0.65])


def test_cosine_added() -> None:
    # 1; 1 + (3·4 + 4·3) / (5 · 5) = 1.96; 1.96 - 1
    rule = FedHyperG(lr=1.0, bound=3.0, hypergrad="cosine")
    assert rates(rule, ([3, 4],), ([4, 3],), ([-8, -6],)) == pytest.approx([1.0, 1.96, 0.96], rel=1e-12)


def test_cosine_in_log_space() -> None:
    rule = FedHyperG(lr=1.0, bound=10.0, hypergrad="cosine", apply="log", hyper_lr=0.5)
    up = math.exp(0.5)  # cosines: none, 1, 0, -1
    assert rates(rule, ([1, 0],), ([2, 0],), ([0, 3],), ([0, -1],)) == pytest.approx([1.0, up, up, 1.0], rel=1e-12)


def test_log_space_reaches_either_bound_from_the_other_in_one_step() -> None:
    rule = FedHyperG(lr=1.0, bound=3.0, apply="log")
    # 1; exp(-1e6), clipped to 1/3; 1/3 · exp(+1e6), clipped to 3
    assert rates(rule, ([1e3],), ([-1e3],), ([-1e3],)) == pytest.approx([1.0, 1 / 3, 3.0], rel=1e-12)
    wide = FedHyperG(lr=1.0, bound=1e200, apply="log")
    assert rates(wide, ([1e3],), ([1e3],)) == [1.0, 1e200]


def test_relative_to_the_initial_rate() -> None:
    rule = FedHyperSL(lr=0.01, bound=10.0, apply="relative", hyper_lr=2.0)
    # .01; .01 + 2 · .01 · 3; .07 - 2 · .01 · 3
    assert rates(rule, ([1, 0],), ([3, 0],), ([-1, 0],)) == pytest.approx([0.01, 0.07, 0.01], rel=1e-12)


def test_the_step_size_of_the_rate() -> None:
    # 1; 1 + .1 · .5
    assert rates(FedHyperG(lr=1.0, bound=3.0, hyper_lr=0.1), ([1, 0],), ([0.5, 0],)) == pytest.approx([1.0, 1.05])


def test_bounds() -> None:
    assert FedHyperSL(lr=0.01, bound=10.0).range == pytest.approx((0.001, 0.1))
    assert FedHyperSL(lr=0.01, bound=10.0, bounds="absolute").range == pytest.approx((0.1, 10.0))
    assert FedHyperSL(lr=0.01, bound=10.0, bounds="absolute").init().lr == 0.1  # thrown up at once: decision 3
    assert FedHyperG(bound=3.0).range == FedHyperG(bound=3.0, bounds="absolute").range  # for α0 = 1 they agree


def test_paper_is_the_letter() -> None:
    assert FedHyperG.paper() == FedHyperG(lr=1.0, bound=3.0, bounds="absolute")
    assert FedHyperSL.paper(bound=5.0) == FedHyperSL(lr=0.01, bound=5.0, bounds="absolute")
    cl = FedHyperCL.paper(lr=0.5, local_steps=3)
    assert cl == FedHyperCL(lr=0.5, local_steps=3, bounds="absolute", hypergrad="inner", apply="add", hyper_lr=1.0)
    assert (cl.bound, cl.global_term) == (10.0, "add")
    assert rates(FedHyperSL.paper(lr=0.01), ([1, 0],), ([20, 0],)) == [0.1, 10.0]  # .1 + 20, clipped to 10


def test_defaults_are_the_papers_equations() -> None:
    for rule in (FedHyperG(), FedHyperSL(), FedHyperCL(local_steps=1)):
        assert (rule.hypergrad, rule.apply, rule.hyper_lr, rule.bounds) == ("inner", "add", 1.0, "relative")
    rules = (FedHyperG(), FedHyperSL(), FedHyperCL(local_steps=1))
    assert [(rule.lr, rule.bound) for rule in rules] == [(1.0, 3.0), (0.01, 10.0), (0.01, 10.0)]


def test_decay() -> None:
    assert rates(Decay(lr=0.1, factor=0.5), (), (), ()) == pytest.approx([0.1, 0.05, 0.025])
    assert rates(Constant(lr=0.1), (), ()) == [0.1, 0.1]
    plan = Pair(local_rule=Decay(lr=0.1, factor=0.5))
    state, used = plan.init(), []
    for _ in range(3):
        used.append(state.local_lr)
        state = plan.update(state, seen([1.0]))
    assert used == pytest.approx([0.1, 0.05, 0.025])  # t counts from 0 for either rate


def test_fedexp() -> None:
    steps = [
        ([3.0, 4.0], 100.0),  # 100 / (2 · (25 + .001))
        ([3.0, 4.0], 25.0),  #  just under ½, so the floor
        ([0.0, 0.0], 0.02),  #  .02 / (2 · .001): epsilon is all that is left
    ]
    assert rates(FedExP(epsilon=1e-3), *steps) == pytest.approx([100 / 50.002, 1.0, 10.0], rel=1e-12)


def test_fedexp_as_published_has_an_epsilon_of_a_thousandth() -> None:
    # .02 / (2 · (0 + .001)): at a delta of 0 epsilon is all that is left
    assert rates(FedExP(), ([0.0, 0.0], 0.02)) == pytest.approx([10.0], rel=1e-12)


def test_nan_where_the_published_code_goes_wrong() -> None:
    """There a NaN makes G NaN for ever, drops SL to its floor, and raises CL's rate by 10 % a step."""
    nan = math.nan
    assert rates(FedHyperG(), ([1.0],), ([nan],), ([0.5],)) == [1.0, 1.0, 1.5]
    assert rates(FedHyperSL(lr=0.5), ([1.0],), ([nan],), ([0.5],)) == [0.5, 0.5, 1.0]
    cl = FedHyperCL(lr=0.5, local_steps=1)
    assert rates(cl, ([1.0], [0.0]), ([nan], [0.0]), ([0.5], [nan]), ([0.5], [0.0])) == [0.5, 0.5, 0.5, 1.0]
