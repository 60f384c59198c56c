"""One table of all rules, and the laws that hold for every row of it. What differs is data in the table."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper import Constant, Decay, FedExP, FedHyperCL, FedHyperG, FedHyperSL, LRState, Scheduler
from fedhyper.schedulers import Rule

# NumPy says so when it meets NaN, which is right; what the rate does then is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


@dataclass(frozen=True)
class Row:
    """A rule, the range of its rate, and which way the rate goes when directions agree and when they oppose."""

    name: str
    rule: Any
    range: tuple[float, float]
    agree: int
    oppose: int

    def args(self, direction: Any, other: Any) -> list[Any]:
        """What ``update`` asks for. CL compares a gradient with ``other``, the last global step."""
        seen = {
            "grad": direction,
            "delta": other if "grad" in self.rule.requires else direction,
            "sq_norm": 0.5,
        }
        return [seen[name] for name in self.rule.requires]


def _hypergradient_rows() -> list[Row]:
    rules: dict[str, Callable[..., Rule]] = {
        "G": FedHyperG,
        "SL": FedHyperSL,
        "CL-add": lambda **s: FedHyperCL(local_steps=4, **s),
        "CL-sign": lambda **s: FedHyperCL(local_steps=4, global_term="sign", **s),
        "CL-off": lambda **s: FedHyperCL(local_steps=4, global_term="off", **s),
    }
    ways = itertools.product(rules, ("inner", "cosine"), ("add", "relative", "log"))
    rows = [
        Row(f"{name}-{h}-{how}", rules[name](lr=0.5, bound=4.0, hypergrad=h, apply=how), (0.125, 2.0), 1, -1)
        for name, h, how in ways
    ]
    return [*rows, Row("G-paper", FedHyperG.paper(lr=2.0, bound=4.0), (0.25, 4.0), 1, -1)]


HYPER = _hypergradient_rows()
TABLE = [
    *HYPER,
    Row("Constant", Constant(lr=0.5), (0.5, 0.5), 0, 0),
    Row("Decay", Decay(lr=0.5, factor=0.9), (0.0, 0.5), -1, -1),
    Row("FedExP", FedExP(), (1.0, math.inf), 0, 0),
]


def every(rows: list[Row]) -> pytest.MarkDecorator:
    """Run a law over all these rows."""
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


STEPS, SIZE = 12, 7
_random = random.Random(6)
# Short enough vectors that rates move by tenths and do not sit at a bound.
DIRECTIONS = [[_random.gauss(0.05, 0.15) for _ in range(SIZE)] for _ in range(STEPS)]
OTHERS = [[_random.gauss(0.05, 0.15) for _ in range(SIZE)] for _ in range(STEPS)]


def trajectory(row: Row, make: Callable[[list[float]], Any], lr: Any = None) -> list[Any]:
    """The rates over the common directions, each turned into an array by ``make``."""
    state = row.rule.init() if lr is None else row.rule.init()._replace(lr=lr)
    rates = []
    for direction, other in zip(DIRECTIONS, OTHERS, strict=True):
        state = row.rule.update(state, *row.args(make(direction), make(other)))
        rates.append(state.lr)
    return rates


# The laws ------------------------------------------------------------------------------------------------------------


@every(TABLE)
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30])
def test_stays_in_bound(row: Row, scale: float) -> None:
    state = row.rule.init()
    low, high = row.range
    for direction, other in zip(DIRECTIONS * 3, OTHERS * 3, strict=True):
        state = row.rule.update(state, *row.args([scale * x for x in direction], [scale * x for x in other]))
        assert low <= state.lr <= high


@every(TABLE)
def test_first_update_is_neutral(row: Row) -> None:
    start = row.rule.init()
    after = row.rule.update(start, *row.args([3.0, -4.0], [30.0, 40.0]))
    assert after.lr == start.lr
    assert after.hypergrad == 0.0


@every(TABLE)
def test_agreement_raises(row: Row) -> None:
    first = row.rule.update(row.rule.init(), *row.args([0.3, 0.1], [0.2, 0.2]))
    second = row.rule.update(first, *row.args([0.1, 0.3], [0.2, 0.2]))
    assert np.sign(second.lr - first.lr) == row.agree


@every(TABLE)
def test_opposition_lowers(row: Row) -> None:
    first = row.rule.update(row.rule.init(), *row.args([0.3, 0.1], [0.2, 0.2]))
    second = row.rule.update(first, *row.args([-0.1, -0.3], [0.2, 0.2]))
    assert np.sign(second.lr - first.lr) == row.oppose


@every(TABLE)
@pytest.mark.parametrize("make", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_pure(row: Row, make: Callable[[list[float]], Any]) -> None:
    old = row.rule.update(row.rule.init(), *row.args(make([0.3, 0.1]), make([0.2, 0.2])))
    kept, args = copy.deepcopy(old), row.args(make([0.2, 0.3]), make([0.1, 0.4]))
    shown = copy.deepcopy(args)
    once, twice = row.rule.update(old, *args), row.rule.update(old, *args)
    assert (once.lr, once.hypergrad) == (twice.lr, twice.hypergrad)
    assert (old.lr, old.hypergrad) == (kept.lr, kept.hypergrad)
    assert np.array_equal(old.before, kept.before)
    assert all(np.array_equal(a, b) for a, b in zip(args, shown, strict=True))


@every(TABLE)
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_resumable(row: Row, stop: int) -> None:
    whole, first = Scheduler(row.rule), Scheduler(row.rule)
    steps = [row.args(direction, other) for direction, other in zip(DIRECTIONS, OTHERS, strict=True)]
    expected = [whole.step(*args) for args in steps]
    for args in steps[:stop]:
        first.step(*args)
    second = Scheduler(row.rule)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [second.step(*args) for args in steps[stop:]] == expected[stop:]
    assert second.state_dict() == whole.state_dict()
    assert second.get_last_lr() == [whole.lr]


@every(HYPER)
def test_anti_windup(row: Row) -> None:
    """However long it pushed against the bound, one opposing step leaves it: the clipped value is what is stored."""
    for sign, bound in ((1.0, row.range[1]), (-1.0, row.range[0])):
        state = row.rule.init()
        direction, other = [3.0, 1.0], [sign * 3.0, sign * 1.0]
        for _ in range(200):
            state = row.rule.update(state, *row.args(direction, other))
            direction = [sign * x for x in direction]
            if "delta" in row.rule.requires:
                other = [sign * x for x in other] if sign < 0 else other
        assert state.lr == pytest.approx(bound, rel=1e-12)
        away = [-sign * x / 20 for x in state.before]
        after = row.rule.update(state, *row.args(away, [-sign * x for x in away]))
        assert (after.lr - bound) * sign < -1e-3


@every(HYPER)
def test_zero_vectors_move_nothing(row: Row) -> None:
    for make in (list, np.array, torch.tensor):
        state = row.rule.update(row.rule.init(), *row.args(make([0.0, 0.0]), make([0.0, 0.0])))
        state = row.rule.update(state, *row.args(make([0.0, 0.0]), make([0.0, 0.0])))
        assert (state.lr, state.hypergrad) == (row.rule.init().lr, 0.0)
        state = row.rule.update(state, *row.args(make([1.0, 2.0]), make([0.0, 0.0])))
        assert (state.lr, state.hypergrad) == (row.rule.init().lr, 0.0)


@every(TABLE)
def test_empty_arrays_move_nothing(row: Row) -> None:
    for make in (list, np.array, torch.tensor):
        state = row.rule.init()
        for _ in range(2):
            state = row.rule.update(state, *row.args(make([]), make([])))
        assert (state.lr < row.rule.init().lr) == (row.oppose < 0 and row not in HYPER)


@every(HYPER)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0]),
        (np.ones(2), np.ones(3)),
        (np.ones(3), np.ones((2, 3))),  # would broadcast
        (np.ones((2, 3)), np.ones(3)),
        (torch.ones(1), torch.ones(3)),  # would broadcast
        (torch.ones(3), torch.ones(2, 3)),
        ([torch.ones(2, 3)], [torch.ones(3, 2)]),  # as many numbers, in another shape
        ([np.ones(2), np.ones(3)], [np.ones(2)]),
        ([1.0, 2.0], np.ones(3)),
        (np.ones(2), [1.0, 2.0, 3.0]),
        ([np.ones(2)], [1.0]),
    ],
)
def test_shape_mismatch_is_one_clear_error(row: Row, first: Any, second: Any) -> None:
    state = row.rule.update(row.rule.init(), *row.args(first, first))
    with pytest.raises(ValueError, match=r"^the two vectors have shapes \(.*\) and \(.*\); they must match$"):
        row.rule.update(state, *row.args(second, second))


def _poisoned(values: list[float], position: int, poison: float) -> list[float]:
    return [poison if i == position else x for i, x in enumerate(values)]


@every(HYPER)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("make", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_a_number_that_is_none_is_ignored_and_reported(
    row: Row, poison: float, make: Callable[[list[float]], Any]
) -> None:
    """At any position of any argument: the rate stays, the report says so, and it is as if it had not been shown."""
    read = [name for name in row.rule.requires if not (name == "delta" and "off" in row.name)]
    start = row.rule.init()
    good = row.rule.update(start, *row.args(make(DIRECTIONS[0]), make(OTHERS[0])))
    for state, which, position in itertools.product((start, good), range(len(read)), range(SIZE)):
        if state is start and which == 1:
            continue  # at step 0 the global term is not read
        args = [DIRECTIONS[1], OTHERS[1]][: len(row.rule.requires)]
        args[which] = _poisoned(args[which], position, poison)
        bad = row.rule.update(state, *map(make, args))
        assert bad.lr == state.lr
        assert not math.isfinite(bad.hypergrad)
        assert bad.before is state.before
        scheduler = Scheduler(row.rule)
        scheduler.state = bad
        assert not math.isfinite(scheduler.last_hypergrad)
        args = row.args(make(DIRECTIONS[2]), make(OTHERS[2]))
        assert row.rule.update(bad, *args).lr == row.rule.update(state, *args).lr


def test_fedexp_ignores_what_is_no_number() -> None:
    state = LRState(1.5)
    for args in (([math.nan], 1.0), ([1.0], math.nan), ([math.inf], math.inf), ([1.0], math.inf)):
        assert FedExP().update(state, *args).lr == 1.5


@every(TABLE)
def test_vectors_are_read_through_their_inner_products_alone(row: Row) -> None:
    """What ``products_only`` promises: in another orthonormal basis the rates are the same."""
    basis, _ = np.linalg.qr(np.random.default_rng(6).normal(size=(SIZE, SIZE)))
    turned = trajectory(row, lambda vector: basis @ np.array(vector))
    assert row.rule.products_only
    assert turned == pytest.approx(trajectory(row, np.array), rel=1e-9)


# The same numbers, whatever they are kept in -------------------------------------------------------------------------

KINDS: dict[str, Callable[[list[float]], Any]] = {
    "tuple": tuple,
    "list of numpy scalars": lambda v: [np.float32(x) if i == 0 else np.float64(x) for i, x in enumerate(v)],
    "numpy": np.array,
    "torch": lambda v: torch.tensor(v, dtype=torch.float64),
    "list of arrays": lambda v: [torch.tensor(v[:4], dtype=torch.float64).reshape(2, 2), *map(float, v[4:])],
    "noncontiguous": lambda v: np.repeat(np.array(v), 2)[::2],
}


@every(TABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_same_numbers_in_any_array(row: Row, kind: str) -> None:
    expected = trajectory(row, list)
    tolerance = 1e-6 if "scalars" in kind else 1e-13  # one entry is rounded to float32 there
    assert trajectory(row, KINDS[kind]) == pytest.approx(expected, rel=tolerance)
    assert all(isinstance(rate, float) for rate in trajectory(row, KINDS[kind]))
    if row in HYPER:
        assert len(set(expected)) > 3, "the comparison is worth nothing when the rate stands still"


CLIENTS = 3
SIGNS = [1.0, -0.5, 1.5]  # what tells the clients of a batch apart


def _alone(row: Row, lrs: list[float] | None = None) -> list[list[float]]:
    rates = [
        trajectory(row, lambda v, s=sign: [s * x for x in v], lr)
        for sign, lr in zip(SIGNS, lrs or [None] * CLIENTS, strict=True)
    ]
    return np.array(rates).T.tolist()


@every(HYPER)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_batch_of_clients_equals_each_alone(row: Row, kind: str) -> None:
    rates = trajectory(row, lambda v: KINDS[kind]([[s * x for x in v] for s in SIGNS]))
    assert np.stack([np.asarray(rate) for rate in rates]) == pytest.approx(np.array(_alone(row)), rel=1e-13)


@every(HYPER)
def test_vmap_equals_each_alone(row: Row) -> None:
    def client(lr: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        return torch.stack(trajectory(row, lambda v: sign * torch.tensor(v, dtype=torch.float64), lr))

    lrs = [0.4, 0.5, 0.6]
    as_array = torch.tensor(lrs, dtype=torch.float64)
    rates = torch.func.vmap(client)(as_array, torch.tensor(SIGNS, dtype=torch.float64)).T
    assert rates.numpy() == pytest.approx(np.array(_alone(row, lrs)), rel=1e-13)


@every(HYPER)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_one_bad_client_of_a_batch_is_alone_with_it(row: Row, kind: str) -> None:
    make = KINDS[kind]
    rows = [[[s * x for x in v] for s in SIGNS] for v in DIRECTIONS[:3]]
    poisoned = [rows[1][0], _poisoned(rows[1][1], 2, math.nan), rows[1][2]]
    start = row.rule.update(row.rule.init(), *row.args(make(rows[0]), make(rows[0])))
    good = row.rule.update(start, *row.args(make(rows[1]), make(rows[0])))
    bad = row.rule.update(start, *row.args(make(poisoned), make(rows[0])))
    lr, hypergrad, before = (np.asarray(x) for x in (bad.lr, bad.hypergrad, bad.before))
    assert lr[1] == np.asarray(start.lr + 0 * bad.lr)[1]
    assert np.isnan(hypergrad).tolist() == [False, True, False]
    assert before[1].tolist() == rows[0][1]
    for client in (0, 2):
        assert lr[client] == np.asarray(good.lr)[client]
        assert before[client].tolist() == rows[1][client]


@every(HYPER)
@pytest.mark.parametrize(
    "make",
    [
        lambda v: torch.tensor(v, dtype=torch.float16),
        lambda v: torch.tensor(v, dtype=torch.bfloat16),
        lambda v: np.array(v, dtype=np.float16),
    ],
    ids=["torch.float16", "torch.bfloat16", "numpy.float16"],
)
def test_half_precision_is_summed_in_double(row: Row, make: Callable[[list[float]], Any]) -> None:
    assert trajectory(row, make) == pytest.approx(trajectory(row, lambda v: make(v).tolist()), rel=1e-13)
    # 300² is beyond float16, and 1e6 squares of ½ are beyond it in sum
    state = row.rule.update(row.rule.init(), *row.args(make([300.0] * 9), make([300.0] * 9)))
    state = row.rule.update(state, *row.args(make([300.0] * 9), make([300.0] * 9)))
    assert math.isfinite(state.hypergrad)
    assert state.lr > row.rule.init().lr


@every(HYPER)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("make", [list, lambda v: np.array(v, "float32"), torch.tensor], ids=["list", "numpy", "torch"])
def test_tiny_and_huge_are_still_numbers(row: Row, scale: float, make: Callable[[list[float]], Any]) -> None:
    """Squared, both leave float32. Compared by cosine they move a rate like any others."""
    args = row.args(make([scale, scale]), make([scale, -scale]))  # orthogonal to the other: CL's global term is 0
    state = row.rule.update(row.rule.init(), *args)
    state = row.rule.update(state, *args)
    expected = 1.0 if "cosine" in row.name else 2 * scale**2
    assert state.hypergrad == pytest.approx(expected, rel=1e-6)
    if scale > 1 or "cosine" in row.name:
        assert state.lr > row.rule.init().lr


# Settings and saved states that are refused ---------------------------------------------------------------------------

BAD = [0.0, -1.0, math.nan, math.inf, "0.1", None, True]


@pytest.mark.parametrize("make", [FedHyperG, FedHyperSL, lambda **s: FedHyperCL(local_steps=1, **s), Constant, Decay])
@pytest.mark.parametrize("value", BAD, ids=str)
def test_a_bad_rate_is_refused(make: Callable[..., Rule], value: object) -> None:
    with pytest.raises(ValueError, match=r"^lr must be a finite number above 0, got "):
        make(lr=value)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (FedHyperG, {"hyper_lr": 0.0}, "hyper_lr must be a finite number above 0, got 0.0"),
        (FedHyperG, {"bound": 0.3}, "bound is a factor and must be at least 1, got 0.3; use bound=1 to hold the rate"),
        (FedHyperG, {"bound": math.nan}, "bound is a factor"),
        (FedHyperG, {"bound": math.inf}, "bound is a factor"),
        (FedHyperG, {"bounds": "wide"}, "bounds must be one of relative, absolute, got 'wide'"),
        (FedHyperG, {"hypergrad": "dot"}, "hypergrad must be one of inner, cosine, got 'dot'"),
        (FedHyperG, {"apply": ""}, "apply must be one of add, relative, log, got ''"),
        (FedHyperCL, {"local_steps": 0}, "local_steps counts a client's steps in a round, at least 1, got 0"),
        (FedHyperCL, {"local_steps": 2.0}, "local_steps counts"),
        (FedHyperCL, {"local_steps": True}, "local_steps counts"),
        (FedHyperCL, {"local_steps": 1, "global_term": "mul"}, "global_term must be one of add, sign, off, got 'mul'"),
        (FedHyperCL, {"local_steps": 1, "epsilon": 1.1}, "epsilon must be in"),
        (FedHyperCL, {"local_steps": 1, "epsilon": -0.1}, "epsilon must be in"),
        (FedHyperCL, {"local_steps": 1, "epsilon": math.nan}, "epsilon must be in"),
        (Decay, {"factor": 0.0}, "factor must be in"),
        (Decay, {"factor": 1.01}, "factor must be in"),
        (FedExP, {"epsilon": 0.0}, "epsilon must be a finite number above 0, got 0.0"),
    ],
)
def test_bad_settings_are_refused(make: Callable[..., Rule], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        make(**settings)
    assert "\n" not in str(caught.value)


def test_the_edges_of_the_settings_are_allowed() -> None:
    assert FedHyperG(bound=1).update(LRState(1.0, [1.0]), [1.0]).lr == 1.0  # a bound of 1 holds the rate still
    assert FedHyperCL(local_steps=1, epsilon=0.0) != FedHyperCL(local_steps=1, epsilon=1.0)
    assert Decay(factor=1.0).update(LRState(1.0, 7)).lr == 1.0


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"lr": 1.0},
        {"lr": 1.0, "before": 0.0, "hypergrad": 0.0, "extra": 1},
        {"lr": math.nan, "before": 0.0, "hypergrad": 0.0},
        {"lr": math.inf, "before": 0.0, "hypergrad": 0.0},
        {"lr": 0.0, "before": 0.0, "hypergrad": 0.0},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(saved: dict[str, Any]) -> None:
    scheduler = Scheduler(FedHyperG())
    with pytest.raises(ValueError, match=r"state"):
        scheduler.load_state_dict(saved)
    assert scheduler.state == FedHyperG().init()
