"""What a method lets you set beyond the two rates, and what it is when you do not."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from fedhyper import Auto
from fedhyper.schedulers import FedHyperCL
from fedhyper.sim.methods import make_method, option_names

Rate = Annotated[float, Field(gt=0, le=1e6)]
Wide = Annotated[float, Field(ge=0, le=1e12)] | None
Factor = Annotated[float, Field(ge=1, le=1e12)]


class Strict(BaseModel):
    """A table of the config: no unknown keys, no conversions, no NaN."""

    # Not pydantic's lax mode: it would take "3" for 3 and true for 1.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())


class NamedOptions(Strict):
    """What a method lets you set beyond the two rates; absent means the method's own default."""

    global_bound: Factor | None = Field(None, description="G: γ, the global rate stays within a factor γ of its start")
    local_bound: Factor | None = Field(None, description="SL, CL: γ of the local rate")
    bounds: Literal["relative", "absolute"] | None = Field(None, description="[lr/γ, lr·γ] or the paper's [1/γ, γ]")
    hypergrad: Literal["inner", "cosine"] | None = Field(None, description="<a, b> (the paper) or its cosine")
    apply: Literal["add", "relative", "log"] | None = Field(None, description="lr + κh, lr + κ·lr0·h, or lr·exp(κh)")
    hyper_lr: Rate | None = Field(None, description="κ, the step size of the rate itself")
    global_term: Literal["add", "sign", "off"] | None = Field(None, description="CL: how last round's update enters")
    epsilon: float | None = Field(None, ge=0, le=1, description="CL: ε of global_term = sign; fedexp: its ε")
    bound: Factor | None = Field(None, description="fedhyper: how far the rate may move from its start")
    retreat: Factor | None = Field(None, description="fedhyper: what a rollback divides the rate by")
    momentum: float | None = Field(None, ge=0, lt=1, description="server momentum μ")
    beta1: float | None = Field(None, ge=0, lt=1, description="server Adam: β1")
    beta2: float | None = Field(None, ge=0, lt=1, description="server Adam: β2")
    tau: float | None = Field(None, gt=0, le=1e6, description="server Adam, Adagrad, Yogi: τ")
    factor: float | None = Field(None, gt=0, le=1, description="decay: what a round multiplies the rate with")
    mu: float | None = Field(None, ge=0, le=1e6, description="fedprox: μ of the proximal term")
    gamma: float | None = Field(None, gt=0, le=1e6, description="delta-sgd: γ")
    delta: float | None = Field(None, ge=0, le=1e6, description="delta-sgd: δ")
    eta0: Rate | None = Field(None, description="delta-sgd: the first step's rate")
    c: float | None = Field(None, gt=0, le=1e6, description="fedsps: c of the Polyak step")
    floor: float | None = Field(None, ge=-1e6, le=1e6, description="fedsps: a lower bound of the loss")


def _automatic() -> dict[str, Any]:
    """The settings of ``Auto`` that are not above, each with what its docstring says; their ranges are its own."""
    says = dict(re.findall(r"^    (\w+) {2,}(\S.*)$", Auto.__doc__ or "", re.MULTILINE))
    new = [f.name for f in fields(Auto) if f.name not in {*NamedOptions.model_fields, "local_lr", "global_lr"}]
    return {name: (Wide, Field(None, description=f"fedhyper: {says.get(name, name)}")) for name in new}


if TYPE_CHECKING:
    Options = NamedOptions
else:
    Options = create_model("Options", __base__=NamedOptions, **_automatic())

# The constants of optimizers that need torch to be asked; a test asks them.
_CLIENT = {"gamma": 2.0, "delta": 0.1, "eta0": 0.2, "c": 0.5, "floor": 0.0}
_RENAMED = {"global_bound": "bound", "local_bound": "bound", "mu": "proximal"}


def option_defaults(method: str) -> dict[str, Any]:
    """What each option of ``method`` is when it is not set, read off the rules the method is made of."""
    made = make_method(method, local_lr=1.0, global_lr=1.0)
    globally, locally = getattr(made.plan, "global_rule", None), getattr(made.plan, "local_rule", None)
    client = FedHyperCL(local_steps=1, **made.local.settings) if made.local.kind == "hyper" else made.local
    defaults: dict[str, Any] = {}
    for option in option_names(method):
        first = (globally,) if option == "global_bound" else (client, locally) if option == "local_bound" else ()
        name = _RENAMED.get(option, option)
        for part in first or (made.plan, globally, locally, made.server, client):
            if hasattr(part, name):
                defaults[option] = getattr(part, name)
                break
        else:
            defaults[option] = _CLIENT[option]
    return defaults
