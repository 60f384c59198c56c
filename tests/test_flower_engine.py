"""An experiment through Flower: the same bits as the simulator's slow twin, and an app to start from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedhyper.errors import UserError
from fedhyper.lab.config.model import dump, make_config
from fedhyper.lab.flower_new import app_name, new_app
from fedhyper.lab.running.build import make_simulation
from fedhyper.lab.running.flower_engine import FlowerEngine, make_client_app, run_experiment
from fedhyper.lab.running.run import run_experiment as run_here
from tests.flower_support import LocalGrid

METHODS = ["fedhyper", "fedhyper-g+cl", "fedadam", "fedexp", "fedprox", "delta-sgd", "fedsps"]


def settings(**changed: Any) -> Any:
    values = {"task": "digits", "rounds": 3, "clients": 6, "clients_per_round": 3, "local_lr": 0.05, "eval_every": 1}
    return make_config({**values, "engine": "sequential", **changed})


def simulate(config: Any, **grid: Any) -> list[dict[str, Any]]:
    sim = make_simulation(config, workers=1)
    if grid:
        sim.engine = FlowerEngine(LocalGrid(make_client_app(dump(config)), 6, **grid), sim.engine, 6)
    records = [sim.run_round(evaluate=True) for _ in range(config.rounds)]
    sim.close()
    return [*({k: v for k, v in r.items() if "seconds" not in k} for r in records), {"sha256": sim.weights_sha256()}]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_bits_of_the_slow_twin(method: str) -> None:
    config = settings(method=method)
    assert simulate(config, shuffle=5) == simulate(config)


def test_a_client_that_is_asked_several_things_at_once_answers_each() -> None:
    """As the judges of a start are, by each of their batches."""
    sim = make_simulation(settings(), workers=1)
    try:
        sent, tasks = sim._sent(sim._state), sim.cohorts.judges(0, 50)
        assert len(tasks) > 6
        there = FlowerEngine(LocalGrid(make_client_app(dump(settings())), 6, shuffle=5), sim.engine, 6)
        losses = [[reply.first_loss for reply in engine.train(tasks, sent)] for engine in (there, sim.engine)]
    finally:
        sim.close()
    assert losses[0] == losses[1]
    assert len(set(losses[1])) > 6


def test_clients_step_with_the_optimizer_of_the_config() -> None:
    config = settings(local_optimizer="adamw", weight_decay=0.1, clip_norm=0.5, local_lr=0.003, method="fedavg")
    there = simulate(config, shuffle=5)
    assert there == simulate(config)
    for key, value in {"local_optimizer": "adam", "weight_decay": 0.0, "clip_norm": 0.0}.items():
        assert there != simulate(config.model_copy(update={key: value}), shuffle=5), key


def test_augmented_images_a_warm_up_and_other_numbers() -> None:
    config = settings(method="fedavg", augment="flip-crop", warmup_rounds=2, dtype="bfloat16")
    there = simulate(config, shuffle=5)
    assert there == simulate(config)
    for key, value in {"augment": "flip", "warmup_rounds": 0, "dtype": "float32"}.items():
        assert there != simulate(config.model_copy(update={key: value}), shuffle=5), key


def test_a_model_with_statistics(tmp_path: Path) -> None:
    config = settings(method="fedhyper-cl", model="cnn", rounds=2, subset=60)
    assert simulate(config, shuffle=1) == simulate(config)


def test_a_client_that_fails_is_counted_and_the_others_go_on() -> None:
    config = settings(clients_per_round=6, rounds=2)

    def garbled(reply: Message) -> Message:
        del reply.content["update"]["delta"]
        return reply

    def missing(reply: Message) -> list[Message]:
        return []

    for spoil in (missing, garbled):
        records = simulate(config, spoil={2: spoil})
        assert [record["clients_used"] for record in records[:-1]] == [5, 5]
        assert [record["clients_rejected"] for record in records[:-1]] == [1, 1]


def test_only_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--device cuda"):
        run_experiment(settings(), tmp_path / "run", device="cuda")


@pytest.mark.flower
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_run_directory_through_the_real_simulation_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: on a busy machine clients would wait for all others
    config = settings(clients=10, clients_per_round=4)
    there = run_experiment(config, tmp_path / "flower", workers=2)
    here = run_here(config, tmp_path / "here", workers=1)
    assert there["weights_sha256"] == here["weights_sha256"]
    assert there["status"] == "finished"
    assert json.loads((tmp_path / "flower" / "env.json").read_text())["engine"] == "flower"
    names = sorted(path.name for path in (tmp_path / "flower").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "here").iterdir())
    for a, b in zip(
        *((tmp_path / d / "metrics.jsonl").read_text().splitlines() for d in ("flower", "here")), strict=True
    ):
        left, right = json.loads(a), json.loads(b)
        assert {k: v for k, v in left.items() if "seconds" not in k} == {
            k: v for k, v in right.items() if "seconds" not in k
        }


def test_new_app_writes_an_app_flower_accepts(tmp_path: Path) -> None:
    directory = new_app(tmp_path / "My First_App!", "fmnist")
    project = tomllib.loads((directory / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-first-app"
    assert project["tool"]["flwr"]["app"]["config"]["task"] == "fmnist"
    for component in project["tool"]["flwr"]["app"]["components"].values():
        module, _, name = component.partition(":")
        source = directory.joinpath(*module.split(".")).with_suffix(".py").read_text()
        assert f"\n{name} = " in source
        compile(source, component, "exec")
    assert "NAME" not in (directory / "README.md").read_text()


def test_new_app_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        new_app(tmp_path / "used")
    with pytest.raises(UserError, match="--task"):
        new_app(tmp_path / "new", "imagenet")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert new_app(tmp_path / "empty").is_dir()


@pytest.mark.parametrize(
    ("directory", "name"),
    [("x", "x"), ("9lives", "app-9lives"), ("ÄÖ", "app"), ("a" * 50, "a" * 32), ("a_b.c", "a-b-c"), ("---", "app")],
)
def test_app_names(directory: str, name: str) -> None:
    assert app_name(directory) == name
