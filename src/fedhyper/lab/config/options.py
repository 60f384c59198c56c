"""What a method lets you set beyond the two rates: read off the rules it is made of."""

from __future__ import annotations

from typing import Any

from fedhyper.errors import did_you_mean
from fedhyper.sim.methods import make_method, method_names, method_options


def option_defaults(method: str) -> dict[str, Any]:
    """What each option of ``method`` is when it is not set."""
    return {name: option.default for name, option in method_options(method).items()}


def unknown_option(name: str, method: str) -> str:
    """Why ``name`` cannot be set: no method has such an option, or only others do."""
    known = method_options(method)
    if not any(name in method_options(other) for other in method_names()):
        return f"key 'options.{name}' is not known; {did_you_mean(name, known, 'options.')}"
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    return f"options.{name} is not an option of method '{method}'; {takes}"


def has_client_rate(method: str) -> bool:
    """Whether clients move the rate themselves, from that of the round before: FedHyper-CL, by its global term."""
    return "global_term" in method_options(method)


def has_own_step(method: str) -> bool:
    """Whether clients decide the rate of a step themselves: FedHyper-CL, Δ-SGD, FedSPS."""
    return make_method(method, local_lr=1.0, global_lr=1.0).local.kind != "sgd"
