"""Mirrored and shifted images, the warm-up, and what clients compute in: the config's keys and what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedhyper.errors import UserError
from fedhyper.lab.config.identity import config_hash
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.running.build import make_simulation as from_config
from fedhyper.lab.running.run import run_experiment
from fedhyper.sim.data.augment import SHIFT, Augment, Kind
from fedhyper.sim.data.tasks import Task
from tests.sim_support import batchnorm_net, make_simulation, run

SMALL: dict[str, Any] = {"clients": 8, "clients_per_round": 4, "rounds": 4, "method": "fedavg", "local_lr": 0.1}


def images(n: int = 64, size: int = 6) -> torch.Tensor:
    """``[n, 2, size, size]``, every pixel another number, none of them 0."""
    return torch.arange(1.0, 1 + n * 2 * size * size).view(n, 2, size, size)


def by_hand(image: torch.Tensor, mirrored: bool, down: int, right: int) -> torch.Tensor:
    """The slow twin, for one image: shifted pixel by pixel, then mirrored."""
    moved, size = torch.zeros_like(image), image.shape[1]
    for y in range(size):
        for x in range(size):
            if 0 <= y + down < size and 0 <= x + right < size:
                moved[:, y, x] = image[:, y + down, x + right]
    return moved.flip(2) if mirrored else moved


@pytest.mark.parametrize(("kind", "shift"), [("flip", 0), ("flip-crop", SHIFT)])
def test_every_image_is_one_of_those_that_can_come_out(kind: Kind, shift: int) -> None:
    before, seen = images(), set()
    for old, new in zip(before, Augment(kind, 0, 0, 0)(before, 0), strict=True):
        moves = range(-shift, shift + 1)
        ways = [(m, d, r) for m in (False, True) for d in moves for r in moves if by_hand(old, m, d, r).equal(new)]
        assert len(ways) == 1
        seen.add(ways[0])
    assert {mirrored for mirrored, _, _ in seen} == {False, True}
    assert len(seen) == (2 if kind == "flip" else len(seen))
    if shift:
        assert {down for _, down, _ in seen} == {right for _, _, right in seen} == set(range(-shift, shift + 1))


def test_chance_depends_on_seed_round_client_and_step() -> None:
    x = images()
    one = Augment("flip-crop", 1, 2, 3)
    assert one(x, 4).equal(one(x, 4))
    others = [one._replace(seed=0), one._replace(round=0), one._replace(client=0)]
    assert not any(other(x, 4).equal(one(x, 4)) for other in others)
    assert not one(x, 5).equal(one(x, 4))


@pytest.mark.parametrize("model", ["mlp", "cnn", "batchnorm"])
def test_engines_see_the_same_images(model: str) -> None:
    def sim(**settings: Any) -> Any:
        net = batchnorm_net() if model == "batchnorm" else model
        return make_simulation("fedavg", model=net, augment="flip-crop", **settings)

    fast, same, slow = sim(workers=2), sim(workers=1), sim(engine="sequential")
    records = run(fast, 3)
    assert records == run(same, 3)
    assert fast.weights_sha256() == same.weights_sha256()
    losses = [record["train_loss"] for record in run(slow, 3)]
    assert losses == pytest.approx([record["train_loss"] for record in records], rel=2e-3)
    plain = make_simulation("fedavg", model=batchnorm_net() if model == "batchnorm" else model)
    assert losses[0] != pytest.approx(run(plain, 1)[0]["train_loss"], rel=1e-3)


def test_the_start_of_fedhyper_takes_augmented_batches_too() -> None:
    sim = make_simulation("fedhyper", augment="flip", clients=4, clients_per_round=2, batch_size=64)
    assert run(sim, 2)[-1]["local_lr"] > 0


@pytest.mark.parametrize("keys", [{"augment": "flip-crop"}, {"dtype": "bfloat16"}, {"warmup_rounds": 3}])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(keys: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(SMALL | keys | {"checkpoint_every": 1})
    whole = run_experiment(config, tmp_path / "whole", workers=1)
    run_experiment(config.model_copy(update={"rounds": 2}), tmp_path / "two", workers=1)
    resumed = run_experiment(config, tmp_path / "two", resume=True, workers=2)
    assert resumed["weights_sha256"] == whole["weights_sha256"]


def test_a_warm_up_ramps_what_the_scheduler_says() -> None:
    assert rates(SMALL | {"warmup_rounds": 3}) == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.1])
    decayed = rates(SMALL | {"method": "decay-sl", "options": {"factor": 0.5}, "warmup_rounds": 2})
    assert decayed == pytest.approx([0.1 / 2, 0.1 / 2, 0.1 / 4, 0.1 / 8])
    assert rates(SMALL | {"warmup_rounds": 1}) == rates(SMALL) == pytest.approx([0.1] * 4)


def rates(values: dict[str, Any]) -> list[float]:
    """The local rate of every round."""
    config = make_config(values)
    return [record["local_lr"] for record in run(from_config(config, workers=1), config.rounds)]


@pytest.mark.parametrize("method", ["fedhyper", "fedhyper+momentum", "fedhyper-g+cl", "delta-sgd", "fedsps"])
def test_a_warm_up_of_rates_that_clients_do_not_take_is_refused(method: str) -> None:
    with pytest.raises(
        UserError,
        match=rf"^config: warmup_rounds = 5 does not go with method '{method}'.*leave it out$".replace("+", r"\+"),
    ):
        make_config({"method": method, "warmup_rounds": 5})


def test_what_is_no_image_is_not_mirrored() -> None:
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    with pytest.raises(UserError, match=r'^augment = "flip" is for images, and an input of task rows has shape \(5,\)'):
        make_simulation(task=Task("rows", x, y, x, y, 3), model=torch.nn.Linear(5, 3), augment="flip")


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_other_numbers_learn_as_much(model: str) -> None:
    """bfloat16 has 8 bits: its losses differ in the third digit, and nothing else is lost at a useful rate."""
    losses = {}
    for dtype in ("float32", "float64", "bfloat16"):
        sim = from_config(make_config(SMALL | {"model": model, "dtype": dtype, "rounds": 10}), workers=1)
        losses[dtype] = [record["train_loss"] for record in run(sim, 10)]
        assert {tensor.dtype for tensor in sim.named_weights().values()} == {torch.float32}
    assert losses["float64"] == pytest.approx(losses["float32"], rel=1e-4)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=3e-2)
    assert losses["float64"] != losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"][-1] < 0.9 * losses["bfloat16"][0]


@pytest.mark.parametrize(("key", "value"), [("dtype", "float16"), ("augment", "crop"), ("warmup_rounds", -1)])
def test_other_values_are_refused_in_one_line(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^config: {key} = .* must be "):
        make_config({key: value})


def test_runs_from_before_these_keys_still_continue() -> None:
    plain = Config.model_validate({"method": "fedavg"})
    spelled = make_config({"method": "fedavg", "dtype": "float32", "augment": "none", "warmup_rounds": 0})
    assert config_hash(plain) == config_hash(spelled)
    for key, value in (("dtype", "bfloat16"), ("augment", "flip"), ("warmup_rounds", 2)):
        assert config_hash(make_config({"method": "fedavg", key: value})) != config_hash(plain)
