"""The config: strict, complete, and every refusal one line that names the key and the value."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhyper.errors import UserError, shown
from fedhyper.lab.config.identity import CHANGEABLE, config_hash, differences
from fedhyper.lab.config.model import Config, PartitionConfig, PrivacyConfig, dump, load_config, make_config
from fedhyper.lab.config.options import option_defaults
from fedhyper.lab.config.toml import parse_override, read_toml
from fedhyper.lab.methods_table import markdown
from fedhyper.lab.sweep.grid import make_cells, parse_axes
from fedhyper.sim.methods import Option, make_method, method_names, method_options
from fedhyper.sim.registry import METHODS, TASKS

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
TABLES: dict[str, Any] = {"": Config, "partition": PartitionConfig, "privacy": PrivacyConfig}
NESTED = {"partition", "options", "model_options", "privacy"}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        make_config(values, "x.toml")
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message == " ".join(message.split())
    assert message.isprintable()
    assert "Traceback" not in message
    return message


def nested(key: str, value: Any) -> dict[str, Any]:
    table, _, name = key.rpartition(".")
    return {table: {name: value}} if table else {name: value}


def fields() -> Iterator[tuple[str, Any]]:
    for table, model in TABLES.items():
        for name, field in model.model_fields.items():
            if name not in NESTED:
                yield f"{table}.{name}" if table else name, field


def is_type(field: Any, kind: type) -> bool:
    annotation = field.annotation
    return annotation is kind or any(a is kind or kind in get_args(a) for a in get_args(annotation))


def limits(key: str) -> dict[str, float]:
    """minimum, maximum, exclusiveMinimum, exclusiveMaximum of a key, from the published schema."""
    table, _, name = key.rpartition(".")
    schema = TABLES[table].model_json_schema()["properties"][name]
    parts = [schema, *schema.get("anyOf", ())]
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    return {n: part[n] for part in parts for n in names if n in part}


def bad_values(key: str, field: Any) -> Iterator[Any]:
    """Everything that key must refuse, from its schema: a new key is covered without a word here."""
    yield from ([], [1], {"a": 1}, math.nan, math.inf, -math.inf)
    if is_type(field, str):
        yield from (3, 1.5, True, "x" * 101)
    elif is_type(field, bool):
        yield from (0, 1, "true", "")
    elif is_type(field, int) or is_type(field, float):
        yield from ("3", "", True, False, 10**309, -(10**309), 10**5000)
        if is_type(field, int):
            yield from (1.0, 2.5)
        bounds = limits(key)
        assert bounds.keys() & {"minimum", "exclusiveMinimum"}, f"{key} has no lower limit"
        assert bounds.keys() & {"maximum", "exclusiveMaximum"}, f"{key} has no upper limit"
        if "minimum" in bounds:
            yield bounds["minimum"] - 1
        if "exclusiveMinimum" in bounds:
            yield from (bounds["exclusiveMinimum"], -0.0, bounds["exclusiveMinimum"] - 1)
        if "maximum" in bounds:
            yield bounds["maximum"] + (1 if bounds["maximum"] < 2**53 else bounds["maximum"])
        if "exclusiveMaximum" in bounds:
            yield bounds["exclusiveMaximum"]
    else:  # a choice
        yield from ("", "nonsense", 1, True, 2.5)


CASES = [
    pytest.param(key, value, id=f"{key}-{i}")
    for key, field in fields()
    for i, value in enumerate(bad_values(key, field))
]


OPTIONS = {(name, option.name): option for name in METHODS for option in method_options(name).values()}


def bad_options(option: Option) -> Iterator[Any]:
    """Everything that an option must refuse, from what its rule says of it."""
    yield from ([], {"a": 1}, None, math.nan, math.inf)
    if option.says.choices:
        yield from ("", "nonsense", 1, True, 2.5)
        return
    yield from ("3", "", True, False, 10**309, -(10**309), 10**5000)
    says = option.says
    yield from (limit - 1 for limit in (says.low, says.above) if limit is not None)
    yield from (limit for limit in (says.above, says.below) if limit is not None)
    yield from (limit + 1 for limit in (says.high, says.below) if limit is not None)


@pytest.mark.parametrize(("method", "name"), OPTIONS)
def test_every_option_refuses_what_it_is_not(method: str, name: str, tried: Callable[[int], None]) -> None:
    tried(1 + len(list(bad_options(OPTIONS[method, name]))))
    for value in bad_options(OPTIONS[method, name]):
        message = refusal({"method": method, "options": {name: value}})
        assert f"options.{name} = {shown(value)} must be" in message
    assert f"'options.{name}x'" in refusal({"method": method, "options": {name + "x": 1}})


@pytest.mark.parametrize("method", METHODS)
def test_every_option_says_what_it_does(method: str) -> None:
    for option in method_options(method).values():
        assert option.says.accepts(option.default)
        assert option.says.help


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 400


@pytest.mark.parametrize(("key", "value"), CASES)
def test_every_key_refuses_what_it_is_not(key: str, value: Any) -> None:
    message = refusal(nested(key, value))
    assert message.startswith("x.toml: ")
    assert key in message
    assert shown(value) in message or message.count(shown(value).strip('"')[:20])


@pytest.mark.parametrize("key", [key for key, _ in fields()])
def test_every_key_refuses_null_and_unknown_siblings(key: str, tried: Callable[[int], None]) -> None:
    tried(2)
    assert key in refusal(nested(key, None))
    assert f"'{key}'" in refusal(nested(key + "x", 1))


@pytest.mark.parametrize("key", ["model_options", "partition", "options", "privacy"])
@pytest.mark.parametrize("value", [1, "x", True, [], [{}], 1.5])
def test_tables_are_tables(key: str, value: Any) -> None:
    assert f"{key} = {shown(value)} must be a table" in refusal({key: value})


@pytest.mark.parametrize("value", [[], {"a": 1}, math.nan, math.inf, None])
def test_model_options_are_plain(value: Any) -> None:
    assert f"model_options.width = {shown(value)}" in refusal({"model_options": {"width": value}})


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("locl_lr", "local_lr"),
        ("local_rl", "local_lr"),
        ("global_rl", "global_lr"),
        ("globallr", "global_lr"),
        ("round", "rounds"),
        ("roundss", "rounds"),
        ("client", "clients"),
        ("clients_per_rounds", "clients_per_round"),
        ("clientsperround", "clients_per_round"),
        ("batchsize", "batch_size"),
        ("local_epoch", "local_epochs"),
        ("local_step", "local_steps"),
        ("sed", "seed"),
        ("methd", "method"),
        ("tsk", "task"),
        ("modle", "model"),
        ("weigthing", "weighting"),
        ("evalevery", "eval_every"),
        ("target_acc", "target_accuracy"),
        ("partition.concentraton", "partition.concentration"),
        ("partition.knd", "partition.kind"),
        ("options.recenci", "options.recency"),
        ("lr", "local_lr"),
        ("learning_rate", "local_lr"),
        ("optimizer", "local_optimizer"),
        ("local_optimiser", "local_optimizer"),
        ("grad_clip", "clip_norm"),
        ("nesterov", 'local_optimizer = "nesterov"'),
    ],
)
def test_did_you_mean(typo: str, meant: str) -> None:
    assert f"key '{typo}' is not known; did you mean '{meant}'?" in refusal(nested(typo, 1))


def test_momentum_may_be_the_clients_or_the_servers() -> None:
    says = "did you mean 'local_optimizer = \"momentum\"' (clients) or 'options.momentum' (the server)?"
    assert says in refusal({"momentum": 0.9})


PLAIN = [name for name in method_names() if not any(own in name for own in ("cl", "delta-sgd", "fedsps"))]


@pytest.mark.parametrize("method", method_names())
def test_a_client_optimizer_goes_with_every_method_whose_clients_step_plainly(method: str) -> None:
    values = {"method": method, "local_optimizer": "adamw", "weight_decay": 0.01, "clip_norm": 1}
    if method not in PLAIN:
        assert "does not go with method" in refusal(values)
        return
    made, plain = make_config(values).make_method(), make_config({"method": method}).make_method()
    assert (made.local.kind, made.local.weight_decay, made.local.clip_norm) == ("adamw", 0.01, 1.0)
    assert (made.plan, made.server, made.local.proximal) == (plain.plan, plain.server, plain.local.proximal)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method": "fedhyperg"}, "there is no method 'fedhyperg'; did you mean 'fedhyper-g'?"),
        ({"method": "fedavg+adan"}, "did you mean"),
        ({"method": "fedavg", "options": {"mu": 0.1}}, "options.mu is not an option of method 'fedavg'; it takes none"),
        ({"options": {"mu": 0.1}}, "options.mu is not an option of method 'fedhyper'; it takes "),
        ({"clients": 5}, "clients_per_round = 10 must not exceed clients = 5"),
        ({"stop_at_target": True}, "stop_at_target = true needs a target_accuracy"),
        ({"task": "mnist", "partition": {"kind": "natural"}}, "task mnist has no natural clients"),
        ({"carry": True}, "carry = true is for methods with FedHyper-CL"),
        ({"partition": {"kind": "iidd"}}, "did you mean 'iid'?"),
        (
            {"method": "fedhyper-g+cl", "local_optimizer": "adam"},
            "local_optimizer = \"adam\" does not go with method 'fedhyper-g+cl', whose clients have a step of their own"
            "; leave it out, or use a method such as fedavg or fedhyper",
        ),
        ({"method": "fedsps", "weight_decay": 0.1}, "weight_decay = 0.1 does not go with method 'fedsps'"),
        ({"method": "delta-sgd+adam", "clip_norm": 1}, "clip_norm = 1.0 does not go with method 'delta-sgd+adam'"),
        ({"task": "digit"}, "there is no task 'digit'; did you mean 'digits'?"),
        ({"task": "moons"}, "--import MODULE"),
    ],
)
def test_what_does_not_fit_together(values: dict[str, Any], says: str) -> None:
    assert says in refusal(values)


@pytest.mark.parametrize("method", method_names())
def test_said_or_not_said_it_is_the_same_method(method: str) -> None:
    options, rates = option_defaults(method), {"local_lr": 0.5, "global_lr": 0.5}
    assert make_method(method, **rates, **options) == make_method(method, **rates)
    silent, said = make_config({"method": method}), make_config({"method": method, "options": options})
    assert config_hash(silent) == config_hash(said)
    assert make_config(tomllib.loads(dump(silent))).values() == silent.values()


def test_defaults_of_options_are_the_rules_own() -> None:
    import inspect

    from fedhyper.client import DeltaSGD, PolyakSGD

    both = option_defaults("fedhyper-g+cl")
    assert (both["global_bound"], both["local_bound"], both["epsilon"], both["hyper_lr"]) == (3.0, 10.0, 0.1, 1.0)
    assert option_defaults("fedhyper-sl")["local_bound"] == 10.0
    assert option_defaults("fedexp") == {"epsilon": 1e-3}
    assert option_defaults("fedprox") == {"mu": 0.01}
    assert option_defaults("fedavg+adam") == {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    for method, optimizer in (("delta-sgd", DeltaSGD), ("fedsps", PolyakSGD)):
        for name, value in option_defaults(method).items():
            assert inspect.signature(optimizer).parameters[name].default == value


def test_a_suffix_replaces_the_servers_optimizer_and_its_options() -> None:
    assert option_defaults("fedavgm+adam") == option_defaults("fedadam+adam") == option_defaults("fedavg+adam")
    assert option_defaults("fedadam+momentum") == {"momentum": 0.9, "warmup": 0.0}
    made = make_method("fedhyper+momentum", local_lr=0.1, global_lr=1.0, server_momentum=0.5)
    assert "momentum" in option_defaults("fedhyper+momentum")
    assert made.server.momentum == 0.5  # type: ignore[attr-defined]


def test_whole_numbers_are_numbers() -> None:
    one, other = ({"method": "fedhyper-g", "options": {"global_bound": value}} for value in (3, 3.0))
    assert (
        config_hash(make_config(one))
        == config_hash(make_config(other))
        == config_hash(make_config({"method": "fedhyper-g"}))
    )


def test_a_task_names_its_model() -> None:
    from fedhyper.sim.data.tasks import load_task

    assert load_task("digits").model == TASKS.get("digits").model == make_config({}).model
    assert make_config({"task": "fmnist"}).model == "cnn"
    assert make_config({"task": "fmnist", "model": "mlp"}).model == "mlp"


def test_a_config_is_checked_without_torch() -> None:
    script = (
        "import sys\nfrom fedhyper.lab.config.model import make_config\n"
        "make_config({'method': 'fedhyper-g+cl+adam', 'partition': {'kind': 'shards'}}).values()\n"
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_experiments_load_and_round_trip(path: Path) -> None:
    config = load_config(path)
    assert make_config(tomllib.loads(dump(config))).values() == config.values()
    assert path.stem == config.task


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["digits", "fmnist"]),
        "method": st.sampled_from(["fedavg", "fedhyper-g+cl", "fedexp"]),
        "rounds": st.integers(1, 10**6),
        "clients": st.integers(10, 10**6),
        "local_lr": st.floats(1e-300, 1e6, exclude_min=True) | st.integers(1, 10**6),
        "seed": st.integers(0, 2**63 - 1),
        "target_accuracy": st.floats(0, 1) | st.just(-0.0),
        "client_metrics": st.booleans(),
        "partition": st.fixed_dictionaries({}, optional={"concentration": st.floats(1e-3, 1e6)}),
        "model_options": st.dictionaries(
            st.text(min_size=1, max_size=20).filter(lambda s: "\0" not in s),
            st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(blacklist_categories=["Cs"]), max_size=20),
            max_size=3,
        ),
    },
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES)
def test_any_config_round_trips(values: dict[str, Any]) -> None:
    config = make_config(values)
    again = make_config(tomllib.loads(dump(config)))
    assert again.values() == config.values()
    assert config_hash(again) == config_hash(config)
    assert dump(again) == dump(config)


def test_every_default_is_visible() -> None:
    written = tomllib.loads(dump(make_config({})))
    assert set(written) == set(Config.model_fields) - {"model_options", "privacy"}
    assert set(written["options"]) == set(method_options("fedhyper"))
    assert set(written["partition"]) == set(PartitionConfig.model_fields)


@pytest.mark.parametrize("key", [key for key, _ in fields() if "." not in key])
def test_the_hash_is_over_what_determines_the_result(key: str) -> None:
    other: dict[str, Any] = {
        "task": "mnist", "model": "mlp", "method": "fedavg", "weighting": "uniform", "sampling": "size",
        "engine": "sequential", "client_metrics": True, "norm_cap": 2.0, "local_lr": 0.5, "global_lr": 0.5,
        "target_accuracy": 0.5, "clients": 77, "local_optimizer": "adam", "aggregate": "krum", "validation": 0.1,
        "augment": "flip", "dtype": "bfloat16",
    }  # fmt: skip
    method = "fedavgm" if key in ("local_optimizer", "weight_decay", "clip_norm", "warmup_rounds") else "fedhyper-cl"
    base = {"target_accuracy": 0.1, "method": method, "model": "logistic"}
    default = make_config(base)
    value = other.get(key, True if key in ("stop_at_target", "carry") else 7)
    changed = make_config(base | {key: value})
    assert (config_hash(changed) == config_hash(default)) == (key in CHANGEABLE)
    assert [text.split()[0] for text in differences(changed, default)] == ([] if key in CHANGEABLE else [key])


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"seed = 1\nseed = 2\n", "not TOML"),
        (b"[partition]\n[partition]\n", "not TOML"),
        (b"\xef\xbb\xbfseed = 1\n", "byte order mark"),
        (b"seed = 1\0\n", "not TOML"),
        (b'task = "\xff"\n', "byte 8 is not UTF-8"),
        (b"seed = " + b"[" * 50_000, "x.toml"),
        (b"a" + b".a" * 50_000 + b" = 1", "x.toml"),
        (b"#" * (1 << 20) + b"\n", "longer than 1 MiB"),
        (b"seed = 0x\n", "not TOML"),
        (b"seed = 1 2\n", "not TOML"),
        (b"seed\n", "not TOML"),
        (b"= 1\n", "not TOML"),
        (b'task = "digits\n', "not TOML"),
        (b"seed = " + b"9" * 5000, "x.toml"),
        (b"seed = 1979-05-27\n", "seed = 1979-05-27 must be a whole number"),
        (b"local_lr = nan\n", "local_lr = nan must be a finite number"),
        (b"local_lr = 1e999\n", "local_lr = inf must be a finite number"),
        (b"[[partition]]\n", "partition"),
        (b'"\\u001b[31m" = 1\n', "is not known"),
        (b"[unknown.deeper]\nx = 1\n", "key 'unknown' is not known"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert says in message
    assert str(path) in message
    assert message.isprintable()


def test_files_that_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"")
    assert load_config(path).values() == make_config({}).values()
    path.write_bytes(b"seed = 3\r\n[partition]\r\nkind = 'iid'\r\n")
    assert load_config(path) == make_config({"seed": 3, "partition": {"kind": "iid"}})


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "fifo", Path("a\0b"), tmp_path / ("x" * 300)):
        with pytest.raises(UserError) as caught:
            load_config(path)
        assert str(caught.value).isprintable()


# --- command line --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("local_lr=0.1", "local_lr", 0.1),
        ("seed=3", "seed", 3),
        ("method=fedhyper-g+cl", "method", "fedhyper-g+cl"),
        ('method="fedavg"', "method", "fedavg"),
        ("stop_at_target=true", "stop_at_target", True),
        ("partition.concentration=0.1", "partition.concentration", 0.1),
        ("task = digits", "task", "digits"),
        ("model=1\nseed = 2", "model", "1\nseed = 2"),
    ],
)
def test_overrides(text: str, key: str, value: Any) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["seed", "=1", "seed=", "a b=1", "--x=1", ".=1", "a..b=1", "x=" + "[" * 5000])
def test_overrides_that_are_none(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_override(text)
    assert str(caught.value).isprintable()


def test_an_override_wins_and_is_blamed(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("seed = 1\n[partition]\nconcentration = 0.5\n")
    config = load_config(path, ["seed=2", "partition.concentration=0.1", "partition.kind=dirichlet"])
    assert (config.seed, config.partition.concentration) == (2, 0.1)
    with pytest.raises(UserError, match=r"^command line: seed = \"x\" must be a whole number$"):
        load_config(path, ["seed=x"])
    with pytest.raises(
        UserError, match=r"^command line: key 'partition.clients' is not known; did you mean 'clients', outside"
    ):
        load_config(path, ["partition.clients=5"])
    with pytest.raises(UserError, match=r"partition\.kind: partition is not a table"):
        load_config(path, ["partition=1", "partition.kind=iid"])


def test_another_model_has_options_of_its_own() -> None:
    cifar10 = EXPERIMENTS / "cifar10.toml"
    assert load_config(cifar10).model_options == {"norm": "group"}
    assert load_config(cifar10, ["model=resnet18", "rounds=2"]).model_options == {"norm": "group"}
    assert load_config(cifar10, ["model=cnn"]).model_options == {}
    assert load_config(cifar10, ["model_options.hidden=20", "model=mlp"]).model_options == {"hidden": 20}
    grid = parse_axes(["model=cnn,resnet18"])
    assert [cell.config.model_options for cell in make_cells(read_toml(cifar10), grid, "cifar10.toml")] == [
        {},
        {"norm": "group"},
    ]


def test_the_documentation_names_every_key() -> None:
    text = (EXPERIMENTS.parent / "docs" / "config.md").read_text("utf-8")
    for key, field in fields():
        assert f"`{key.removeprefix('partition.').removeprefix('privacy.')}`" in text, key
        assert field.description, key
        if key == "norm_cap" or key.startswith("privacy."):
            assert field.description in text, key
            assert field.annotation is bool or "; raising it " in field.description, key
    for table in markdown().split("\n\n"):
        assert table.strip() in text, "put the output of python -m fedhyper.lab.methods_table into docs/config.md"


def test_shown_is_one_printable_line() -> None:
    for value in ("\x1b[2J", "a\nb", "\u202e", "x" * 10**6, 10**5000, [[[]]] * 1000, object(), math.nan):
        assert shown(value).isprintable()
        assert len(shown(value)) <= 60
    assert json.loads(shown("a")) == "a"
