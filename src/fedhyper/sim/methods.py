"""Every method by name: a plan for the rates, a server optimizer, and the optimizer that clients run.

make_method("fedhyper-g+cl", local_lr=0.01, global_lr=1.0)
make_method("fedhyper-g+adam", local_lr=0.01, global_lr=0.1, tau=1e-2)
make_method("fedhyper", local_lr=0.01, global_lr=1.0, local=Local(kind="adamw", weight_decay=0.01))
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from fedhyper.automatic.auto import Auto
from fedhyper.averages import Averaging, LastTwo
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.client.constants import DeltaConstants, PolyakConstants, ProximalConstants
from fedhyper.errors import UserError, did_you_mean, shown
from fedhyper.optimizers import Adagrad, Adam, Average, Momentum, ServerOptimizer, Yogi
from fedhyper.plan import Pair, Plan
from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL, Rule
from fedhyper.settings import Setting, check_settings, setting, settings_of
from fedhyper.sim.registry import METHODS, register_method

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Local:
    """What a client runs. ``settings`` are those of its rule; ``proximal`` is FedProx's μ in g + μ (w − w_t)."""

    kind: str = "sgd"  # a name that register_local knows
    settings: dict[str, Any] = field(default_factory=dict)
    proximal: float = 0.0
    needs_delta: bool = False  # CL's global term: Δ_t-1 goes down with the weights
    weight_decay: float = setting(
        0.0,
        "share of a client's weights that a step takes off, times its rate; raising it keeps them smaller",
        low=0,
    )
    clip_norm: float = setting(
        0.0, "longest gradient a client steps with, longer ones are cut to it; raising it cuts less, 0 = off", low=0
    )

    def __post_init__(self) -> None:
        check_settings(self)


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


class Option(NamedTuple):
    """What may be set of a method beyond the two rates: its default, and what the rule it belongs to says of it."""

    name: str
    default: Any
    says: Setting


class Given:
    """What a method is made from: both initial rates, and the options that were set.

    ``make`` builds a rule from them. Whatever it builds is asked for its settings, so the options of a method, their
    defaults, ranges and texts are those of its parts, and nobody has to list them.
    """

    def __init__(self, name: str, local_lr: float, global_lr: float, options: dict[str, Any]) -> None:
        self.name, self.local_lr, self.global_lr = name, local_lr, global_lr
        self.taken: dict[str, Option] = {}
        self._options = options
        self._suffix: str | None = None

    def make(self, kind: type[T], *, renamed: dict[str, str] | None = None, **fixed: Any) -> T:
        """A ``kind`` (a dataclass of settings) with ``fixed`` values; its other settings become options of the method.

        ``renamed`` says which option sets which of its settings, where the names differ: ``{"bound": "local_bound"}``.
        """
        values: dict[str, Any] = dict(fixed)
        for one in fields(kind):  # type: ignore[arg-type]
            if one.name in fixed or not isinstance(one.default, bool | int | float | str):
                continue
            option = (renamed or {}).get(one.name, one.name)
            says = settings_of(kind).get(one.name, Setting(help=one.name, kind=type(one.default)))
            known = self.taken.setdefault(option, Option(option, one.default, says))
            if known.default != one.default:
                raise UserError(f"option {option!r} of method {self.name!r} has two defaults; rename one of them")
            if option in self._options:
                values[one.name] = self._options[option]
        return kind(**values)

    def server(self, kind: type[ServerOptimizer], **fixed: Any) -> ServerOptimizer:
        """The server's optimizer: ``kind``, or what stands behind the last ``+`` of the method's name."""
        return Average() if self._suffix else self.make(kind, **fixed)

    def method(self, *, global_rule: Rule | None = None, local_rule: Rule | None = None, **parts: Any) -> Method:
        """A method with one rule for each rate, constant where none is given; ``parts`` are those of ``Method``."""
        plan = Pair(
            global_rule=global_rule or Constant(lr=self.global_lr),
            local_rule=local_rule or Constant(lr=self.local_lr),
        )
        return Method(name=self.name, **{"plan": plan, **parts})

    def finish(self, method: Method) -> Method:
        """The server optimizer that the name asks for, in place of the method's own."""
        if self._suffix is None:
            return method
        kind = SUFFIXES[self._suffix]
        # fedhyper has a momentum of its own: the server's then has another name
        renamed = {name: f"server_{name}" for name in settings_of(kind) if name in self.taken}
        return replace(method, server=self.make(kind, renamed=renamed))

    @classmethod
    def build(cls, name: str, local_lr: float, global_lr: float, options: dict[str, Any]) -> tuple[Method, Given]:
        """The method ``name``, and what was asked for while it was built."""
        given = cls(name, local_lr, global_lr, options)
        base, given._suffix = split_name(name)
        return given.finish(METHODS.get(base).make(given)), given


SUFFIXES: dict[str, type[Momentum | Adam]] = {"momentum": Momentum, "adam": Adam}


def split_name(name: str) -> tuple[str, str | None]:
    """``fedavg+adam`` → (``fedavg``, ``adam``); ``fedhyper-g+cl`` is a name of its own."""
    base, _, suffix = name.rpartition("+")
    return (base, suffix) if suffix in SUFFIXES and base in METHODS else (name, None)


def method_names() -> list[str]:
    """Every name that ``make_method`` takes: each method, then each with ``+momentum`` and ``+adam``."""
    return [*METHODS, *(f"{base}+{suffix}" for base in METHODS for suffix in SUFFIXES)]


def method_options(name: str) -> dict[str, Option]:
    """The options of the method ``name``; an unknown method is refused with the nearest known one."""
    return Given.build(name, 1.0, 1.0, {})[1].taken


def make_method(name: str, *, local_lr: float, global_lr: float, local: Local | None = None, **options: Any) -> Method:
    """The method ``name`` from these initial rates; ``+momentum`` or ``+adam`` puts that optimizer on the server.

    ``local``: what its clients step with instead of SGD, refused where they have a step of their own.
    """
    known = method_options(name)
    for option in options:
        if option not in known:
            raise UserError(f"options.{option} is not an option of method '{name}'; {did_you_mean(option, known)}")
    try:
        return _stepping(Given.build(name, float(local_lr), float(global_lr), options)[0], local or Local())
    except (ValueError, TypeError) as error:  # a rule says which setting, which value, which cure
        raise UserError(f"method '{name}': {error}") from error


def _stepping(method: Method, local: Local) -> Method:
    """``method`` with clients that step as ``local`` says."""
    parts: dict[str, Any] = {"kind": local.kind, "weight_decay": local.weight_decay, "clip_norm": local.clip_norm}
    changed = [(name, value) for name, value in parts.items() if value not in ("sgd", 0.0)]
    if not changed:
        return method
    if method.local.kind != "sgd":  # their rates are derived for w − βg: another step would make them mean nothing
        key, value = changed[0]
        raise UserError(
            f"{'local_optimizer' if key == 'kind' else key} = {shown(value)} does not go with method '{method.name}', "
            "whose clients have a step of their own; leave it out, or use a method such as fedavg or fedhyper"
        )
    return replace(method, local=replace(method.local, **parts))


# --- the methods ----------------------------------------------------------------------------------------------


def _g(given: Given) -> FedHyperG:
    return given.make(FedHyperG, lr=given.global_lr, renamed={"bound": "global_bound"})


def _sl(given: Given) -> FedHyperSL:
    return given.make(FedHyperSL, lr=given.local_lr, renamed={"bound": "local_bound"})


def _cl(given: Given) -> Local:
    # lr: the bound is around the initial rate, also when the server sends another one
    rule = given.make(FedHyperCL, lr=given.local_lr, local_steps=1, renamed={"bound": "local_bound"})
    settings = {name: value for name, value in asdict(rule).items() if name != "local_steps"}
    return Local(kind="hyper", settings=settings, needs_delta=rule.global_term != "off")


@register_method("fedhyper", "learning-rate-free: both rates found while training (= auto)")
def _fedhyper(given: Given) -> Method:
    return Method(name=given.name, plan=given.make(Auto, local_lr=given.local_lr, global_lr=given.global_lr))


@register_method("fedhyper-g", "FedHyper-G: the global rate, on the server")
def _fedhyper_g(given: Given) -> Method:
    return given.method(global_rule=_g(given))


@register_method("fedhyper-sl", "FedHyper-SL: the local rate, on the server")
def _fedhyper_sl(given: Given) -> Method:
    return given.method(local_rule=_sl(given))


@register_method("fedhyper-cl", "FedHyper-CL: the local rate, on each client")
def _fedhyper_cl(given: Given) -> Method:
    return given.method(local=_cl(given))


@register_method(
    "fedhyper-cl-released",
    "FedHyper-CL as its authors' code has it: multiplied, at most +10 % a step, from steps and not gradients",
)
def _fedhyper_cl_released(given: Given) -> Method:
    return given.method(local=Local(kind="released", needs_delta=True))


@register_method("fedhyper-g+cl", "FedHyper-G and -CL, the paper's best")
def _fedhyper_g_cl(given: Given) -> Method:
    return given.method(global_rule=_g(given), local=_cl(given))


@register_method("fedhyper-g+sl", "FedHyper-G and -SL, one hypergradient for both rates")
def _fedhyper_g_sl(given: Given) -> Method:
    return given.method(global_rule=_g(given), local_rule=_sl(given))


@register_method("fedavg", "constant rates")
def _fedavg(given: Given) -> Method:
    return given.method()


@register_method("fedavgm", "server momentum")
def _fedavgm(given: Given) -> Method:
    return given.method(server=given.server(Momentum))


@register_method("fedadam", "Adam on the server")
def _fedadam(given: Given) -> Method:
    return given.method(server=given.server(Adam))


@register_method("fedadagrad", "Adagrad on the server")
def _fedadagrad(given: Given) -> Method:
    return given.method(server=given.server(Adagrad))


@register_method("fedyogi", "Yogi on the server")
def _fedyogi(given: Given) -> Method:
    return given.method(server=given.server(Yogi))


@register_method("fedexp", "FedExP: extrapolation from the clients' norms; there is no initial global rate")
def _fedexp(given: Given) -> Method:
    return given.method(global_rule=given.make(FedExP), average=LastTwo())


@register_method("decay-g", "the global rate × 0.995 a round")
def _decay_g(given: Given) -> Method:
    return given.method(global_rule=given.make(Decay, lr=given.global_lr))


@register_method("decay-sl", "the local rate × 0.995 a round")
def _decay_sl(given: Given) -> Method:
    return given.method(local_rule=given.make(Decay, lr=given.local_lr))


@register_method("fedprox", "a proximal term on each client")
def _fedprox(given: Given) -> Method:
    return given.method(local=Local(proximal=given.make(ProximalConstants).mu))


@register_method("delta-sgd", "Δ-SGD: each client's rate from its local smoothness; there is no initial local rate")
def _delta_sgd(given: Given) -> Method:
    return given.method(local=Local(kind="delta", settings=asdict(given.make(DeltaConstants))))


@register_method("fedsps", "FedSPS: each client's Polyak rate, at most local_lr")
def _fedsps(given: Given) -> Method:
    return given.method(local=Local(kind="polyak", settings=asdict(given.make(PolyakConstants))))
