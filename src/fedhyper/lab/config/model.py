"""What a run is made of: one strict model, the only place where the defaults of an experiment live.

A config is read from TOML, then from ``key=value`` on the command line. Whatever is wrong is said in one line
that names the file, the key, the value and the cure. How a run is carried out (workers, device, where its files
go) is not in here, for it must not change a bit of the result.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedhyper.errors import UserError, did_you_mean, nearest, printable, shown
from fedhyper.lab.config.options import has_client_rate, option_defaults, unknown_option
from fedhyper.sim.keywords import Later, checked_options, keyword_options
from fedhyper.sim.methods import make_method, method_options
from fedhyper.sim.registry import PARTITIONS, TASKS

MAX_BYTES = 1 << 20
# tomllib takes minutes for a key of 50,000 parts; every start is at the start of a part, so this search is linear.
_DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){50}""")
# What may differ between a run and its continuation: how long, how often looked at, when to stop.
CHANGEABLE = frozenset(
    [
        "rounds",
        "eval_every",
        "checkpoint_every",
        "target_accuracy",
        "stop_at_target",
        "patience",
        "max_bad_rounds",
    ]
)

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
        split = PARTITIONS.get(self.kind).split
        if self.model_extra:
            known = [*PartitionConfig.model_fields, *keyword_options(split)]
            for name in self.model_extra:
                if name not in known:
                    hint = did_you_mean(name, known, prefix="partition.")
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
    local_lr: Rate = Field(0.01, description="initial local (client) rate")
    global_lr: Rate = Field(1.0, description="initial global (server) rate")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="where all randomness comes from")
    weighting: Literal["examples", "uniform"] = Field("examples", description="a client's weight in the mean")
    sampling: Literal["uniform", "size"] = Field("uniform", description="who is chosen: all alike, or by data held")
    carry: bool = Field(False, description="CL: a round starts from the clients' last rates, not from local_lr")
    norm_cap: float = Field(0.0, ge=0, le=1e6, description="longest update, in medians of the round; 0 = off")
    subset: int = Field(0, ge=0, le=100_000_000, description="train on this many examples only; 0 = all")
    engine: Literal["fast", "sequential"] = Field("fast", description="sequential is the slow twin")
    eval_every: Count = Field(10, description="rounds between evaluations on the test set; the last round always is")
    client_metrics: bool = Field(False, description="also evaluate on each client's own data, at the same rounds")
    checkpoint_every: Limit = Field(0, description="rounds between checkpoints; 0 = whenever one costs under 2 %")
    target_accuracy: float = Field(0.0, ge=0, le=1, description="accuracy to count the rounds to; 0 = none")
    stop_at_target: bool = Field(False, description="end the run when target_accuracy is reached")
    patience: Limit = Field(0, description="end after this many evaluations without a better accuracy; 0 = never")
    max_bad_rounds: Count = Field(5, description="end (exit code 3) after this many rounds without a usable update")
    partition: PartitionConfig = Field(
        default_factory=lambda: PartitionConfig.model_validate({}), description="who holds what"
    )
    options: dict[Name, Plain] = Field(default_factory=dict, description="the method's options")
    model_options: dict[Name, Plain] = Field(
        default_factory=dict, description="the model's options, such as norm or width of resnet18"
    )

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
                raise ValueError(f"options.{name} = {shown(value)} must be {known[name].says.allowed}")
        make_method(self.method, local_lr=self.local_lr, global_lr=self.global_lr, **self.method_options)
        return self

    @property
    def method_options(self) -> dict[str, Any]:
        """The options that are set; 1 is 1.0 where a number need not be whole."""
        known = method_options(self.method)
        return {k: float(v) if known[k].says.kind is float else v for k, v in self.options.items()}

    def values(self) -> dict[str, Any]:
        """Plain values, tables as dicts, the method's own defaults for its options: what ``config.toml`` holds."""
        values = self.model_dump()
        values["partition"] = self.partition.values()
        values["options"] = option_defaults(self.method) | self.method_options
        return {key: 0.0 if value == 0 and isinstance(value, float) else value for key, value in values.items()}


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the TOML file at ``path``, then changed by ``key=value`` strings."""
    values = read_toml(path)
    changes = [parse_override(text) for text in overrides]
    for key, value in changes:
        put(values, key, value)
    return make_config(values, str(path), {key for key, _ in changes})


def make_config(values: dict[str, Any], source: str = "config", overridden: Iterable[str] = ()) -> Config:
    """The config with these values; ``overridden`` keys came from the command line, and errors say so."""
    try:
        return Config.model_validate(values)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except ValidationError as error:
        first, *more = error.errors()
        key = ".".join(str(part) for part in first["loc"] if part not in _BRANCHES)
        where = "command line" if key in set(overridden) else source
        rest = f" (and {len(more)} more)" if more and first["type"] != "union" and len(_keys(error)) > 1 else ""
        raise UserError(f"{where}: {_explain(key, first)}{rest}") from None


# A union adds the branch that failed to the place of an error.
_BRANCHES = frozenset({"bool", "int", "float", "str"})


def _keys(error: ValidationError) -> set[tuple[str, ...]]:
    return {tuple(str(part) for part in one["loc"] if part not in _BRANCHES) for one in error.errors()}


def _explain(key: str, error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return f"key '{printable(key)}' is not known; {did_you_mean(key, list(Config.model_fields))}"
    value = error["input"]
    if key.startswith(("options.", "model_options.")):
        return f"{printable(key)} = {shown(value)} must be a finite number, a string, true or false"
    if kind == "literal_error":
        choices = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"{key} = {shown(value)} must be one of {', '.join(choices)}" + (
            f"; {did_you_mean(value, choices)}" if isinstance(value, str) and nearest(value, choices) else ""
        )
    expected = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a string",
        "string_too_short": "a name",
        "string_too_long": "a name of at most 100 characters",
        "model_type": f"a table, as in [{key}]",
        "dict_type": f"a table, as in [{key}]",
        "greater_than": f"above {context.get('gt', 0):,}",
        "greater_than_equal": f"at least {context.get('ge', 0):,}",
        "less_than": f"below {context.get('lt', 0):,}",
        "less_than_equal": f"at most {context.get('le', 0):,}",
    }.get(kind, str(error["msg"]).lower())
    return f"{printable(key)} = {shown(value)} must be {expected}"


# --- TOML ----------------------------------------------------------------------------------------------------


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file of at most 1 MiB."""
    try:
        # Without O_NONBLOCK a FIFO nobody writes to would be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UserError(
                    f"{printable(str(path))} is not a file; pass a TOML file such as experiments/fmnist.toml"
                )
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UserError(f"cannot read {printable(str(path))}: {reason}; pass a TOML file") from error
    return parse_toml(content, printable(str(path)))


def parse_toml(content: bytes, source: str) -> dict[str, Any]:
    """The tables in the bytes of a TOML file."""
    if len(content) > MAX_BYTES:
        raise UserError(f"{source}: longer than 1 MiB; a config has a few hundred bytes")
    if content.startswith(b"\xef\xbb\xbf"):
        raise UserError(f"{source}: starts with a byte order mark; save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
        if _DEEP.search(text):
            raise RecursionError
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: byte {error.start} is not UTF-8; save it as UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply; a config has one level of tables") from error
    except ValueError as error:  # TOMLDecodeError is one; so is an integer with thousands of digits
        raise UserError(f"{source}: not TOML: {printable(str(error))}") from error


def parse_override(text: str) -> tuple[str, Any]:
    """``partition.concentration=0.1`` → (key, value). The value is TOML; what is not TOML is a bare string."""
    key, value = split_override(text)
    return key, parse_value(value, key)


def split_override(text: str) -> tuple[str, str]:
    """``key=value`` → (key, what is written for the value)."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(part.replace("_", "").isalnum() for part in key.split(".")):
        raise UserError(f"'{printable(text)}' is not key=value, such as local_lr=0.1 or partition.kind=iid")
    return key, value.strip()


def parse_value(text: str, key: str = "value") -> Any:
    """A TOML value, or the text itself where it is none: ``0.1``, ``true``, ``"iid"``, ``iid``."""
    if not text:
        raise UserError(f"command line: {key} has no value; write {key}=VALUE")
    try:
        values = tomllib.loads(f"value = {text}")
    except RecursionError as error:
        raise UserError(f"command line: {key} is nested too deeply") from error
    except ValueError:
        return text
    return values["value"] if set(values) == {"value"} else text


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *tables, name = key.split(".")
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"command line: {key}: {table} is not a table")
        values = inner
    values[name] = value


def dump(config: Config) -> str:
    """The config as TOML, every default visible; loading it gives the config back."""
    return dump_toml(config.values())


def dump_toml(values: dict[str, Any]) -> str:
    """Flat values first, then a table for each dict that has something in it."""
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, table in values.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{key}]", *(f"{_key(name)} = {_toml(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool | int) else repr(value)


# --- identity ------------------------------------------------------------------------------------------------


def identity(config: Config) -> dict[str, Any]:
    """The values that determine every round, flat: what a continuation must have in common with its run."""
    flat: dict[str, Any] = {}
    for key, value in config.values().items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key not in CHANGEABLE:
            flat[key] = value
    return flat


def config_hash(config: Config) -> str:
    """SHA-256 of ``identity`` in canonical JSON."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()


def differences(config: Config, other: Config) -> list[str]:
    """``key (a, not b)`` for every key of ``identity`` in which ``config`` (a) departs from ``other`` (b)."""
    ours, theirs = identity(config), identity(other)
    return [
        f"{key} ({shown(ours.get(key, 'absent'))}, not {shown(theirs.get(key, 'absent'))})"
        for key in dict.fromkeys((*theirs, *ours))
        if ours.get(key) != theirs.get(key)
        if config.method == other.method or not key.startswith("options.")  # another method has other options
    ]
