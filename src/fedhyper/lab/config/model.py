"""What a run is made of: one strict model, the only place where the defaults of an experiment live.

A config is read from TOML, then from ``key=value`` on the command line. Whatever is wrong is said in one line
that names the file, the key, the value and the cure. How a run is carried out (workers, device, where its files
go) is not in here, for it must not change a bit of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedhyper.arrays import is_number
from fedhyper.client.constants import LocalOptimizer
from fedhyper.errors import UserError, did_you_mean, plain, printable, shown
from fedhyper.guard import NORM_CAP
from fedhyper.lab.config.explain import blamed, explain
from fedhyper.lab.config.options import has_client_rate, has_own_step, option_defaults, unknown_option
from fedhyper.lab.config.toml import dump_toml, parse_override, put_all, read_toml
from fedhyper.privacy import Privacy
from fedhyper.settings import settings_of
from fedhyper.sim.keywords import Later, checked_options, keyword_options
from fedhyper.sim.methods import Local, Method, make_method, method_options
from fedhyper.sim.registry import PARTITIONS, TASKS

Rate = Annotated[float, Field(gt=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Limit = Annotated[int, Field(ge=0, le=1_000_000)]
Name = Annotated[str, Field(max_length=100)]
Plain = bool | int | float | str


class Strict(BaseModel):
    """A table of the config: no unknown keys, no conversions, no NaN."""

    # Not pydantic's lax mode: it would take "3" for 3 and true for 1.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())


class PartitionConfig(Strict):
    """Who holds what; a kind of one's own may have further keys, the keyword arguments of its function."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field("dirichlet", min_length=1, max_length=100, description="how examples are split")
    concentration: float = Field(0.5, ge=1e-3, le=1e6, description="of dirichlet: small is skewed, large is even")
    shards_per_client: int = Field(2, ge=1, le=10_000, description="of shards: pieces of one class each client gets")
    min_size: int = Field(1, ge=1, le=1_000_000, description="fewest examples a client may hold")

    @model_validator(mode="after")
    def _own_keys(self) -> Self:
        try:
            split = PARTITIONS.get(self.kind).split
        except UserError as error:
            raise UserError(f"partition.kind: {error}") from error
        if self.model_extra:
            known = list(dict.fromkeys([*PartitionConfig.model_fields, *keyword_options(split)]))
            for name in self.model_extra:
                if name not in known:
                    outside = f"did you mean '{name}', outside [partition]?" if name in Config.model_fields else ""
                    meant = "concentration" if plain(name) == "alpha" else name  # as papers call it
                    hint = outside or did_you_mean(meant, known, prefix="partition.")
                    raise ValueError(f"key 'partition.{printable(name)}' is not known; {hint}")
            checked_options(f"partition kind {self.kind}", split, self.model_extra)
        return self

    def values(self) -> dict[str, Any]:
        """Every key, the own ones of its kind included."""
        split, values = PARTITIONS.get(self.kind).split, self.model_dump()
        if isinstance(split, Later):  # the keys of the built-in kinds are all above
            return values
        own = checked_options(f"partition kind {self.kind}", split, self.model_extra or {})
        return keyword_options(split) | values | own


class PrivacyConfig(Strict):
    """Private training: updates clipped, and noise on their mean; see ``fedhyper.privacy``."""

    noise: float = Field(1.0, ge=1e-9, le=1e6, description=settings_of(Privacy)["noise"].help)
    clip: float = Field(1.0, gt=0, le=1e6, description=settings_of(Privacy)["clip"].help)
    adaptive: bool = Field(True, description=settings_of(Privacy)["adaptive"].help)
    delta: float = Field(1e-5, gt=0, lt=1, description=settings_of(Privacy)["delta"].help)


# What a private run is made with, for whatever says otherwise would break its promise.
_PRIVATE = {"weighting": "uniform", "sampling": "poisson", "norm_cap": 0.0, "aggregate": "mean", "carry": False}


class Config(Strict):
    """One experiment, completely: the same config gives the same bits."""

    task: str = Field("digits", min_length=1, max_length=100, description="what to learn")
    model: str = Field("", max_length=100, description="what learns it; the task's own if absent")
    method: str = Field("fedhyper", min_length=1, max_length=100, description="how the rates are set")
    rounds: Count = Field(50, description="rounds of training")
    clients: Count = Field(100, description="population")
    clients_per_round: Count = Field(10, description="how many of them take part in a round")
    local_epochs: int = Field(1, ge=1, le=10_000, description="passes over its data a client makes in a round")
    local_steps: Limit = Field(0, description="steps a client makes in a round, instead of epochs; 0 = use epochs")
    batch_size: int = Field(64, ge=1, le=1_000_000, description="examples a step")
    local_lr: Rate = Field(0.01, description="initial local (client) rate; fedhyper finds its own")
    global_lr: Rate = Field(1.0, description="initial global (server) rate; fedhyper finds its own")
    local_optimizer: LocalOptimizer = Field("sgd", description="what clients step with; fresh every round")
    weight_decay: float = Field(0.0, ge=0, le=1e6, description=settings_of(Local)["weight_decay"].help)
    clip_norm: float = Field(0.0, ge=0, le=1e6, description=settings_of(Local)["clip_norm"].help)
    warmup_rounds: Limit = Field(
        0, description="n: round t of the first n trains with t/n of the local rate; raising it starts gentler, 0 = off"
    )
    augment: Literal["none", "flip", "flip-crop"] = Field(
        "none", description="what chance does to images in training: mirrored, mirrored and shifted by up to 4 pixels"
    )
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="what clients compute in; the server's numbers are float32 whatever it is"
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="where all randomness comes from")
    weighting: Literal["examples", "uniform"] = Field("examples", description="a client's weight in the mean")
    sampling: Literal["uniform", "size", "poisson"] = Field(
        "uniform", description="who is chosen: all alike, by data held, or each by a coin of its own"
    )
    carry: bool = Field(False, description="CL: a round starts from the clients' last rates, not from local_lr")
    aggregate: Literal["mean", "trimmed", "median", "krum"] = Field(
        "mean", description="how updates become one: mean, or one that holds against some hostile clients"
    )
    norm_cap: float = Field(
        NORM_CAP,
        ge=0,
        le=1e6,
        description="strongest pull of one client, in medians of the round; raising it lets one move more, 0 = no rule",
    )
    subset: int = Field(0, ge=0, le=100_000_000, description="train on this many examples only; 0 = all")
    validation: float = Field(
        0.0, ge=0, le=0.5, description="share of the training data the server keeps to decide when to stop; 0 = none"
    )
    engine: Literal["fast", "sequential"] = Field("fast", description="sequential is the slow twin")
    eval_every: Count = Field(10, description="rounds between evaluations on the test set; the last round always is")
    client_metrics: bool = Field(False, description="also evaluate on each client's own data, at the same rounds")
    checkpoint_every: Limit = Field(0, description="rounds between checkpoints; 0 = whenever one costs under 2 %")
    target_accuracy: float = Field(0.0, ge=0, le=1, description="accuracy to count the rounds to; 0 = none")
    stop_at_target: bool = Field(False, description="end the run when target_accuracy is reached")
    patience: Limit = Field(0, description="end after this many evaluations without a better accuracy; 0 = never")
    max_bad_rounds: Count = Field(
        5, description="end (exit code 3) after this many rounds without a usable update, or rollbacks in close order"
    )
    partition: PartitionConfig = Field(
        default_factory=lambda: PartitionConfig.model_validate({}), description="who holds what"
    )
    options: dict[Name, Plain] = Field(default_factory=dict, description="the method's options")
    model_options: dict[Name, Plain] = Field(
        default_factory=dict, description="the model's options, such as norm or width of resnet18"
    )

    privacy: PrivacyConfig | None = Field(None, description="private training, if the table is there")

    @model_validator(mode="before")
    @classmethod
    def _fill_private(cls, given: Any) -> Any:
        return _PRIVATE | given if isinstance(given, dict) and given.get("privacy") is not None else given

    @model_validator(mode="before")
    @classmethod
    def _fill_model(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("model", "") == "":
            task = given.get("task", cls.model_fields["task"].default)
            if isinstance(task, str) and task in TASKS:
                return {**given, "model": TASKS.get(task).model}
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.clients_per_round > self.clients:
            raise ValueError(f"clients_per_round = {self.clients_per_round} must not exceed clients = {self.clients}")
        if self.stop_at_target and not self.target_accuracy:
            raise ValueError("stop_at_target = true needs a target_accuracy above 0, got 0")
        if self.partition.kind == "natural" and not TASKS.get(self.task).natural:
            raise ValueError(
                f'partition.kind = "natural": task {self.task} has no natural clients; use dirichlet, shards or iid'
            )
        if self.privacy is not None:
            self._check_private(self.privacy)
        TASKS.get(self.task)  # refuses an unknown one
        known = method_options(self.method)
        if self.carry and not has_client_rate(self.method):
            raise ValueError(
                f"carry = true is for methods with FedHyper-CL, such as fedhyper-g+cl, not '{self.method}'"
            )
        for name, value in self.options.items():
            if name not in known:
                raise ValueError(unknown_option(printable(name), self.method))
            if not known[name].says.accepts(value):
                allowed = known[name].says.allowed
                if known[name].says.kind is float and not is_number(value) and "number" not in allowed:
                    allowed = f"a number, {allowed}"
                raise ValueError(f"options.{name} = {shown(value)} must be {allowed}")
        self._check_warmup(self.make_method())
        return self

    def _check_warmup(self, method: Method) -> None:
        """A warm-up is for clients that step with the rate they are sent."""
        if not self.warmup_rounds:
            return
        why = "which finds its rates" if method.plan.ladder is not None else "whose clients set their own rate"
        if method.plan.ladder is not None or has_own_step(self.method):
            raise ValueError(
                f"warmup_rounds = {self.warmup_rounds} does not go with method '{self.method}', {why}; leave it out"
            )

    def _check_private(self, privacy: PrivacyConfig) -> None:
        for key, value in _PRIVATE.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"{key} = {shown(getattr(self, key))} does not go with [privacy]; it needs {shown(value)}"
                )
        try:
            Privacy(**privacy.model_dump()).on_updates(self.clients_per_round)
        except ValueError as error:
            if "noise" in privacy.model_fields_set:
                raise
            given = ", ".join(f"privacy.{name}" for name in sorted(privacy.model_fields_set)) or "[privacy]"
            raise ValueError(f"{given} makes the run private, with the default noise: {error}") from error

    def make_method(self) -> Method:
        """The method with its rates and options, and what clients step with."""
        local = Local(kind=self.local_optimizer, weight_decay=self.weight_decay, clip_norm=self.clip_norm)
        rates = {"local_lr": self.local_lr, "global_lr": self.global_lr}
        return make_method(self.method, **rates, local=local, **self.method_options)

    @property
    def method_options(self) -> dict[str, Any]:
        """The options that are set; 1 is 1.0 where a number need not be whole."""
        known = method_options(self.method)
        return {k: float(v) if known[k].says.kind is float else v for k, v in self.options.items()}

    @property
    def finds_rates(self) -> bool:
        """Whether clients try rates out in the first round, so that ``local_lr`` and ``global_lr`` are not read."""
        return self.make_method().plan.ladder is not None

    def values(self) -> dict[str, Any]:
        """Plain values, tables as dicts, the method's own defaults for its options: what ``config.toml`` holds."""
        values = self.model_dump(exclude={"privacy"} if self.privacy is None else None)
        values["partition"] = self.partition.values()
        values["options"] = option_defaults(self.method) | self.method_options
        return {key: 0.0 if value == 0 and isinstance(value, float) else value for key, value in values.items()}


_TABLES: dict[str, type[Strict]] = {"partition": PartitionConfig, "privacy": PrivacyConfig}
KEYS = [*Config.model_fields, *(f"{table}.{name}" for table, kind in _TABLES.items() for name in kind.model_fields)]


def load_config(path: Path, overrides: Sequence[str] = (), unread: dict[str, Any] | None = None) -> Config:
    """The config in the TOML file at ``path``, then changed by ``key=value`` strings.

    ``unread``: what stands for keys that the command does not read, so that it is not refused because of them.
    """
    values = read_toml(path)
    changes: dict[str, Any] = {}
    for key, value in map(parse_override, overrides):
        if key in changes:  # as TOML and sweeps have it: nobody knows which one was meant
            raise UserError(f"command line: {key} is given twice; leave one out")
        changes[key] = value
    put_all(values, changes | (unread or {}))
    try:
        return make_config(values, str(path), changes)
    except UserError as error:
        if any(isinstance(v, str) and re.search(r",|\.\.", v) and v in str(error) for v in changes.values()):
            raise UserError(f"{error}; several values are for fedhyper sweep") from error
        raise


def make_config(values: dict[str, Any], source: str = "config", overridden: Iterable[str] = ()) -> Config:
    """The config with these values; ``overridden`` keys came from the command line, and errors say so."""
    if values.get("method") == "auto":  # its name in Python, in papers' tables and in our own documents
        raise UserError(
            f"{'command line' if 'method' in overridden else source}: method 'auto' is called fedhyper here"
        )
    try:
        return Config.model_validate(values)
    except UserError as error:
        raise UserError(f"{blamed(str(error), source, overridden)}: {error}") from error
    except ValidationError as error:
        raise UserError(explain(error, source, overridden, KEYS)) from None


def dump(config: Config) -> str:
    """The config as TOML, every default visible; loading it gives the config back."""
    return dump_toml(config.values())
