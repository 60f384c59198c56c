"""Every method by name: a plan for the rates, a server optimizer, and the optimizer that clients run.

make_method("fedhyper-g+cl", local_lr=0.01, global_lr=1.0)
make_method("fedhyper-g+adam", local_lr=0.01, global_lr=0.1, tau=1e-2)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedhyper.automatic.auto import Auto
from fedhyper.averages import Averaging, LastTwo
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.errors import UserError
from fedhyper.optimizers import Adagrad, Adam, Momentum, ServerOptimizer, Yogi
from fedhyper.plan import Pair, Plan
from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL, Rule

LocalKind = Literal["sgd", "hyper", "released", "adam", "delta", "polyak"]


@dataclass(frozen=True, kw_only=True)
class Local:
    """What a client runs. ``settings`` are those of its rule; ``proximal`` is FedProx's μ in g + μ (w − w_t)."""

    kind: LocalKind = "sgd"
    settings: dict[str, Any] = field(default_factory=dict)
    proximal: float = 0.0
    needs_delta: bool = False  # CL's global term: Δ_t-1 goes down with the weights


@dataclass(frozen=True, kw_only=True)
class Method:
    """A whole method: what decides the rates, what the server makes of an aggregate, and what clients run.

    ``server`` and ``average``: None is the plan's own choice.
    """

    name: str
    plan: Plan
    server: ServerOptimizer | None = None
    local: Local = field(default_factory=Local)
    average: Averaging | None = None


@dataclass(frozen=True)
class _Given:
    """What a method is made from: both initial rates and the options that were set."""

    name: str
    local_lr: float
    global_lr: float
    options: dict[str, Any]

    def pick(self, *names: str, **renamed: str) -> dict[str, Any]:
        """The options among ``names`` that were set, under the names the rule knows them by."""
        return {renamed.get(name, name): self.options[name] for name in names if name in self.options}

    def method(self, *, global_rule: Rule | None = None, local_rule: Rule | None = None, **fields: Any) -> Method:
        plan = Pair(
            global_rule=global_rule or Constant(lr=self.global_lr),
            local_rule=local_rule or Constant(lr=self.local_lr),
        )
        return Method(name=self.name, **{"plan": plan, **fields})

    def g(self) -> FedHyperG:
        return FedHyperG(lr=self.global_lr, **self.pick("global_bound", *_RATE, global_bound="bound"))

    def sl(self) -> FedHyperSL:
        return FedHyperSL(lr=self.local_lr, **self.pick("local_bound", *_RATE, local_bound="bound"))

    def cl(self) -> Local:
        # lr: the bound is around the initial rate, also when the server sends another one
        settings = {"lr": self.local_lr, **self.pick(*_CL, local_bound="bound")}
        FedHyperCL(local_steps=1, **settings)  # refuse bad settings now, and not on a client
        return Local(kind="hyper", settings=settings, needs_delta=settings.get("global_term") != "off")


@dataclass(frozen=True)
class _Entry:
    summary: str
    options: tuple[str, ...]
    make: Callable[[_Given], Method]


_RATE = ("bounds", "hypergrad", "apply", "hyper_lr")
_G = ("global_bound", *_RATE)
_SL = ("local_bound", *_RATE)
_CL = (*_SL, "global_term", "epsilon")
_MOMENTUM = ("momentum",)
_ADAM = ("beta1", "beta2", "tau")
_AUTO = tuple(f.name for f in fields(Auto) if f.name not in ("local_lr", "global_lr"))

METHODS: dict[str, _Entry] = {
    "fedhyper": _Entry(
        "learning-rate-free: both rates found while training (= auto)",
        _AUTO,
        lambda s: Method(name=s.name, plan=Auto(local_lr=s.local_lr, global_lr=s.global_lr, **s.pick(*_AUTO))),
    ),
    "fedhyper-g": _Entry("FedHyper-G: the global rate, on the server", _G, lambda s: s.method(global_rule=s.g())),
    "fedhyper-sl": _Entry("FedHyper-SL: the local rate, on the server", _SL, lambda s: s.method(local_rule=s.sl())),
    "fedhyper-cl": _Entry("FedHyper-CL: the local rate, on each client", _CL, lambda s: s.method(local=s.cl())),
    "fedhyper-cl-released": _Entry(
        "FedHyper-CL as its authors' code has it: multiplied, at most +10 % a step, from steps and not gradients",
        (),
        lambda s: s.method(local=Local(kind="released", needs_delta=True)),
    ),
    "fedhyper-g+cl": _Entry(
        "FedHyper-G and -CL, the paper's best", (*_G, *_CL), lambda s: s.method(global_rule=s.g(), local=s.cl())
    ),
    "fedhyper-g+sl": _Entry(
        "FedHyper-G and -SL, one hypergradient for both rates",
        (*_G, *_SL),
        lambda s: s.method(global_rule=s.g(), local_rule=s.sl()),
    ),
    "fedavg": _Entry("constant rates", (), lambda s: s.method()),
    "fedavgm": _Entry("server momentum", _MOMENTUM, lambda s: s.method(server=Momentum(**s.pick(*_MOMENTUM)))),
    "fedadam": _Entry("Adam on the server", _ADAM, lambda s: s.method(server=Adam(**s.pick(*_ADAM)))),
    "fedadagrad": _Entry("Adagrad on the server", ("tau",), lambda s: s.method(server=Adagrad(**s.pick("tau")))),
    "fedyogi": _Entry("Yogi on the server", _ADAM, lambda s: s.method(server=Yogi(**s.pick(*_ADAM)))),
    "fedexp": _Entry(
        "FedExP: extrapolation from the clients' norms; there is no initial global rate",
        ("epsilon",),
        lambda s: s.method(global_rule=FedExP(**s.pick("epsilon")), average=LastTwo()),
    ),
    "decay-g": _Entry(
        "the global rate × 0.995 a round",
        ("factor",),
        lambda s: s.method(global_rule=Decay(lr=s.global_lr, **s.pick("factor"))),
    ),
    "decay-sl": _Entry(
        "the local rate × 0.995 a round",
        ("factor",),
        lambda s: s.method(local_rule=Decay(lr=s.local_lr, **s.pick("factor"))),
    ),
    "local-adam": _Entry("Adam on each client, fresh every round", (), lambda s: s.method(local=Local(kind="adam"))),
    "fedprox": _Entry(
        "a proximal term on each client",
        ("mu",),
        lambda s: s.method(local=Local(proximal=s.options.get("mu", 0.01))),
    ),
    "delta-sgd": _Entry(
        "Δ-SGD: each client's rate from its local smoothness; there is no initial local rate",
        ("gamma", "delta", "eta0"),
        lambda s: s.method(local=Local(kind="delta", settings=s.pick("gamma", "delta", "eta0"))),
    ),
    "fedsps": _Entry(
        "FedSPS: each client's Polyak rate, at most local_lr",
        ("c", "floor"),
        lambda s: s.method(local=Local(kind="polyak", settings=s.pick("c", "floor"))),
    ),
}
_SUFFIXES: dict[str, tuple[tuple[str, ...], Callable[..., ServerOptimizer]]] = {
    "momentum": (_MOMENTUM, Momentum),
    "adam": (_ADAM, Adam),
}


def _split(name: str) -> tuple[str, str | None]:
    base, plus, suffix = name.rpartition("+")
    return (base, suffix) if plus and suffix in _SUFFIXES and base in METHODS else (name, None)


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(known))}"


def option_names(name: str) -> tuple[str, ...]:
    """The options that the method ``name`` takes; an unknown method is refused with the nearest known one."""
    base, suffix = _split(name)
    if base not in METHODS:
        raise UserError(f"method '{name}' is not known; {_did_you_mean(name, list(METHODS))}")
    return tuple(dict.fromkeys((*METHODS[base].options, *(_SUFFIXES[suffix][0] if suffix else ()))))


def make_method(name: str, *, local_lr: float, global_lr: float, **options: Any) -> Method:
    """The method ``name`` from these initial rates; ``+momentum`` or ``+adam`` puts that optimizer on the server."""
    known = option_names(name)
    for option in options:
        if option not in known:
            hint = _did_you_mean(option, list(known)) if known else "it has none"
            raise UserError(f"options.{option} is not an option of method '{name}'; {hint}")
    base, suffix = _split(name)
    try:
        method = METHODS[base].make(_Given(name, float(local_lr), float(global_lr), options))
        if suffix is None:
            return method
        names, server = _SUFFIXES[suffix]
        settings = {option: options[option] for option in names if option in options}
        return replace(method, server=server(**settings))
    except (ValueError, TypeError) as error:  # a rule says which setting, which value, which cure
        raise UserError(f"method '{name}': {error}") from error
