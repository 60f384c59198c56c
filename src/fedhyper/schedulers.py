"""The three schedulers of FedHyper (ICLR 2024): a rate grows while consecutive steps agree, else it shrinks.

    FedHyper-G    α_t   = clip(α_t-1 + <Δ_t, Δ_t-1>)                          global rate, on the server, once a round
    FedHyper-SL   β_t+1 = clip(β_t   + <Δ_t, Δ_t-1>)                          everyone's local rate, on the server
    FedHyper-CL   β_k   = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K)       one client's local rate, every local step

Δ = before − after, averaged over clients, so it points like a gradient. Rates have no unit: weights move by rate × Δ.
Settings are frozen, the state is a NamedTuple, ``update`` is pure. See docs/maths.md for every decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

from fedhyper.arrays import Array, cosine, elementwise, inner, is_number, isfinite, where
from fedhyper.guard import clamp
from fedhyper.settings import check_settings, setting


class LRState(NamedTuple):
    """Everything that changes.

    lr         the rate in force, above 0
    before     the direction seen last; 0, the neutral element, makes the first hypergradient zero without an `if`
    hypergrad  what moved the rate last; NaN or infinite: it was ignored
    """

    lr: Array
    before: Array = 0.0
    hypergrad: Array = 0.0


class Rule(Protocol):
    """What every rule here and in ``baselines`` offers. ``requires`` names what ``update`` reads, in order."""

    requires: ClassVar[tuple[str, ...]]

    def init(self) -> LRState:
        """The state before anything was seen."""

    def update(self, state: LRState, *directions: Array) -> LRState:
        """The state after these directions; the old one stays valid."""


@dataclass(frozen=True, kw_only=True)
class _Hypergradient:
    """The settings all three share."""

    lr: float = setting(help="initial rate; raising it makes the first steps longer", above=0)
    bound: float = setting(
        help="γ: the rate stays in [lr/γ, lr·γ]; raising it lets the rate go further from its start",
        unit="a factor",
        low=1,
        cure="use bound=1 to hold the rate still",
    )
    bounds: Literal["relative", "absolute"] = setting(
        "relative", "[lr/γ, lr·γ], or the paper's letter [1/γ, γ]", choices=("relative", "absolute")
    )
    hypergrad: Literal["inner", "cosine"] = setting(
        "inner", "h: <a, b> (the paper), or <a, b>/(|a||b|), free of scale", choices=("inner", "cosine")
    )
    apply: Literal["add", "relative", "log"] = setting(
        "add", "lr + κh (the paper), lr + κ·lr0·h, or lr·exp(κh)", choices=("add", "relative", "log")
    )
    hyper_lr: float = setting(1.0, "κ, step size of the rate itself; raising it moves the rate faster", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """The letter of the paper: raw inner product, added, and the absolute bound [1/γ, γ]."""
        letter: dict[str, Any] = {"bounds": "absolute", "hypergrad": "inner", "apply": "add", "hyper_lr": 1.0}
        return cls(**letter | settings)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest rate.

        Three readings of the bound are in use: absolute (the paper's letter), relative to lr0 (ours, and the
        authors' code), per step. Absolute throws a local rate of 0.01 to 0.1 at once and diverges; docs/maths.md.
        """
        scale = self.lr if self.bounds == "relative" else 1.0
        return scale / self.bound, scale * self.bound

    def init(self) -> LRState:
        """The initial rate, inside its bounds, and no direction yet."""
        return LRState(clamp(self.lr, *self.range, keep=self.lr))

    def _compare(self, a: Array, b: Array) -> Array:
        return inner(a, b) if self.hypergrad == "inner" else cosine(a, b)

    def moved(self, lr: Array, h: Array) -> Array:
        """The rate after ``lr`` when the hypergradient is ``h``; ``lr`` again where ``h`` is not finite."""
        low, high = self.range
        if self.apply == "add":
            moved = lr + self.hyper_lr * h
        elif self.apply == "relative":
            moved = lr + self.hyper_lr * self.lr * h
        else:
            span = min(2 * math.log(self.bound), 700.0)  # a longer way ends at the bound too, and exp overflows
            moved = lr * elementwise("exp", clamp(self.hyper_lr * h, -span, span, keep=math.nan))
        return clamp(moved, low, high, keep=lr)

    def _next(self, state: LRState, h: Array, direction: Array) -> LRState:
        if is_number(state.lr) and getattr(h, "ndim", 0) == 0:
            h = float(h)  # one vector; a batch, or lr given as an array under vmap, stays an array
        usable = isfinite(h)
        rows = usable if isinstance(usable, bool) else usable[..., None]
        before = where(rows, direction, state.before)  # a direction that cannot be used poisons nothing
        return LRState(self.moved(state.lr, h), before, h)


@dataclass(frozen=True, kw_only=True)
class FedHyperG(_Hypergradient):
    """FedHyper-G: the global rate, before the update is applied. α_t = clip(α_t-1 + <Δ_t, Δ_t-1>), γ = 3.

    Reads only the aggregate, so it works under secure aggregation. ``update(state, delta)``.
    """

    lr: float = 1.0
    bound: float = 3.0
    requires: ClassVar[tuple[str, ...]] = ("delta",)
    products_only: ClassVar[bool] = True

    def update(self, state: LRState, delta: Array) -> LRState:
        """The rate to apply ``delta`` with. The state keeps a reference to ``delta``: do not write into it."""
        # <Δ_t, Δ_t-1>
        return self._next(state, self._compare(delta, state.before), delta)


@dataclass(frozen=True, kw_only=True)
class FedHyperSL(FedHyperG):
    """FedHyper-SL: the local rate of all clients, on the server. β_t+1 = clip(β_t + <Δ_t, Δ_t-1>), γ = 10.

    The same hypergradient as G; what differs is whose rate it is: clients use it in the *next* round.
    """

    lr: float = 0.01
    bound: float = 10.0


@dataclass(frozen=True, kw_only=True)
class FedHyperCL(_Hypergradient):
    """FedHyper-CL: one client's local rate, every step. β_k = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K), γ = 10.

    ``update(state, grad, delta)``; step 0 uses exactly the rate the server sent. In the first round Δ_t-1 is 0.

    local_steps  K ≥ 1, this client's steps in this round (an array: of each client); raising it gives Δ_t-1 less say
    """

    lr: float = 0.01
    bound: float = 10.0
    local_steps: Array
    global_term: Literal["add", "sign", "off"] = setting(
        "add",
        "how last round's Δ enters: + <g_k, Δ_t-1> / K (Eq. 20), · (1 + ε sign<g_k, Δ_t-1>) (Algorithm 1), or not",
        choices=("add", "sign", "off"),
    )
    epsilon: float = setting(
        0.1,
        "ε of global_term = sign; raising it gives Δ_t-1 more say",
        low=0,
        high=1,
        cure="above 1 it would turn the sign around",
    )
    requires: ClassVar[tuple[str, ...]] = ("grad", "delta")
    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one = isinstance(self.local_steps, (bool, int, float))  # a batch of clients may have an array of them
        if one and (type(self.local_steps) is not int or self.local_steps < 1):
            raise ValueError(f"local_steps counts a client's steps in a round, at least 1, got {self.local_steps!r}")

    def update(self, state: LRState, grad: Array, delta: Array = 0.0) -> LRState:
        """The rate to take this step with. The state keeps a reference to ``grad``: do not write into it."""
        along, globally = self._compare(grad, state.before), 0.0
        started = not (is_number(state.before) and state.before == 0)  # at step 0 the global term does not act either
        if started and self.global_term != "off":
            globally = self._compare(grad, delta)
        return self._next(state, self.hypergradient(along, globally), grad)

    def hypergradient(self, along: Array, globally: Array) -> Array:
        """What moves the rate, from ``<g_k, g_k-1>`` and ``<g_k, Δ_t-1>`` (or their cosines)."""
        if self.global_term == "add":
            return along + globally / self.local_steps
        if self.global_term == "sign":
            more, less = along * (1 + self.epsilon), along * (1 - self.epsilon)
            turned = where(globally > 0, more, where(globally < 0, less, along))
            return turned + 0.0 * globally  # keeps its NaN
        return along


class Scheduler:
    """A rule and its state, in the manner of ``torch.optim.lr_scheduler``: ``lr = scheduler.step(delta)``.

    rule  what moves the rate: FedHyperG, FedHyperSL, FedHyperCL, Constant, Decay, FedExP, or one of yours
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state = rule.init()

    def step(self, *directions: Array) -> float:
        """Show it the newest direction(s); the rate to use comes back."""
        self.state = self.rule.update(self.state, *directions)
        return self.lr

    @property
    def lr(self) -> float:
        """The rate in force."""
        return float(self.state.lr)

    def get_last_lr(self) -> list[float]:
        """The rate in force, as torch's schedulers give it."""
        return [self.lr]

    @property
    def last_hypergrad(self) -> float:
        """The hypergradient that moved the rate last; NaN or infinite says that it was ignored."""
        return float(self.state.hypergrad)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and arrays: what to save."""
        return self.state._asdict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from ``state_dict()``. A rate that is not a finite positive number is refused."""
        if set(saved) != set(LRState._fields):
            raise ValueError(f"a scheduler's state has the keys {', '.join(LRState._fields)}, got {', '.join(saved)}")
        if not (math.isfinite(saved["lr"]) and saved["lr"] > 0):
            raise ValueError(f"lr of a saved state must be a finite number above 0, got {saved['lr']!r}")
        self.state = LRState(**saved)
