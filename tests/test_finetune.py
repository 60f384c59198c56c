"""Fine-tuning without transformers: a pretrained, mostly frozen model in the simulator, and the example's data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhyper.errors import DataError
from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.threads import copies
from fedhyper.sim.methods import Local, make_method
from fedhyper.sim.models import CharacterTransformer, make_model
from fedhyper.sim.registry import MODELS, register_model
from fedhyper.sim.simulation import Simulation
from tests.sim_support import make_simulation, run

EXAMPLE = Path(__file__).parents[1] / "examples" / "finetune"
WORDS = 1000  # of the stand-in's vocabulary


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example's module, imported as the example does."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import finetune.data  # type: ignore[import-not-found]

    yield finetune.data
    for name in [name for name in sys.modules if name.split(".")[0] == "finetune"]:
        monkeypatch.delitem(sys.modules, name)


class Adapted(nn.Module):
    """A frozen transformer with a low-rank adapter and a classifier of its own, by hand: PEFT's shape without PEFT."""

    def __init__(self, length: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.body = CharacterTransformer(WORDS, length, 32, 1, 4).requires_grad_(False)
        self.body.head = nn.Identity()
        self.down, self.up = nn.Linear(32, rank, bias=False), nn.Linear(rank, 32, bias=False)
        nn.init.zeros_(self.up.weight)  # as LoRA starts: the adapter changes nothing
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        here = (x != 0).unsqueeze(-1)
        h = self.body.blocks(self.body.embedding(x) + self.body.position.weight[: x.shape[1]])
        h = h + self.up(self.down(h))
        scores: Tensor = self.head((h * here).sum(1) / here.sum(1))
        return scores


@pytest.fixture
def adapted() -> Iterator[str]:
    """The name of a registered model that keeps the weights it comes with."""

    @register_model("adapted", reads=("characters",), pretrained=True)
    def build(shape: tuple[int, ...], outputs: int, *, rank: int = 4) -> nn.Module:
        return Adapted(shape[0], outputs, rank)

    yield "adapted"
    MODELS.remove("adapted")


def simulate(task: Task, model: nn.Module, method: str, **settings: Any) -> Simulation:
    made = make_method(method, local_lr=0.02, global_lr=1.0, local=Local(kind="adamw"))
    partition = make_partition("iid", task.labels, 8, seed=0)
    asked: dict[str, Any] = {"clients_per_round": 4, "local_epochs": 1, "batch_size": 16} | settings
    return Simulation(task=task, partition=partition, model=model, method=made, seed=0, **asked)


# --- what the library promises ----------------------------------------------------------------------------------------


def test_a_pretrained_model_keeps_its_weights_and_draws_the_rest_from_the_seed(adapted: str) -> None:
    one, same, other = (make_model(adapted, (12,), 2, seed=seed, tokens=True) for seed in (0, 0, 1))
    assert not one.up.weight.any(), "LoRA's second matrix starts at zero"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_without_the_word_weights_are_drawn_anew() -> None:
    @register_model("not-pretrained", reads=("vectors",))
    def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
        layer = nn.Linear(shape[0], outputs)
        nn.init.zeros_(layer.weight)
        return nn.Sequential(nn.Flatten(), layer)

    try:
        assert make_model("not-pretrained", (5,), 2, seed=0)[1].weight.any()
    finally:
        MODELS.remove("not-pretrained")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workers_share_what_is_frozen_and_nothing_else(dtype: torch.dtype) -> None:
    model = Adapted(12, 2, 4)
    one, two = copies(model, 2, torch.device("cpu"), dtype)
    for (name, mine), theirs, given in zip(one.named_parameters(), two.parameters(), model.parameters(), strict=True):
        shared = mine.data_ptr() == theirs.data_ptr()
        assert shared == name.startswith("body."), name
        assert mine.dtype == dtype
        assert given.dtype == torch.float32, "the caller's model is left as it was"
        assert torch.equal(mine, given.to(dtype))
        if dtype == torch.float32 and shared:
            assert mine.data_ptr() == given.data_ptr(), "nothing is copied where nothing changes"


def test_a_frozen_layer_of_a_linear_model_stays_frozen() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        net[1].requires_grad_(False)
        return net

    fast, slow = (make_simulation(model=model(), engine=engine) for engine in ("fast", "sequential"))
    records = [run(sim, 2) for sim in (fast, slow)]
    assert sorted(fast.named_weights()) == ["3.bias", "3.weight"]
    assert records[0][-1]["test_loss"] == pytest.approx(records[1][-1]["test_loss"], rel=1e-4)


# --- a small transformer through the plug-in points -------------------------------------------------------------------


def test_only_what_is_trained_travels_and_it_learns(data: ModuleType, adapted: str) -> None:
    task = data.made_up()
    model = make_model(adapted, task.shape, task.classes, seed=0, tokens=task.tokens, rank=2)
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    sim = simulate(task, model, "fedavg", workers=2)
    records = run(sim, 4)
    numbers = 32 * 2 + 2 * 32 + 32 * 2 + 2
    assert records[0]["bytes_up"] == 4 * (4 * numbers + 24)  # four clients; losses and a weight besides
    assert sum(value.numel() for value in sim.named_weights().values()) == numbers
    assert all(torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items())
    assert records[-1]["accuracy"] > 0.85


def test_the_number_of_workers_changes_no_bit_and_the_slow_twin_agrees(data: ModuleType, adapted: str) -> None:
    task = data.made_up()

    def one(**settings: Any) -> Simulation:
        sim = simulate(task, make_model(adapted, task.shape, 2, seed=0, tokens=True), "fedavg", **settings)
        run(sim, 2)
        return sim

    alone, slow = one(workers=1), one(engine="sequential")
    assert alone.weights_sha256() == one(workers=3).weights_sha256()
    for name, value in slow.named_weights().items():
        assert torch.allclose(value, alone.named_weights()[name], atol=1e-4), name


def test_the_start_leaves_a_trained_model_as_good_as_it_was(data: ModuleType, adapted: str) -> None:
    """Rates far too high are tried on it in the first round, and nothing of that is kept."""
    task = data.made_up()
    model = make_model(adapted, task.shape, 2, seed=0, tokens=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for i in range(40):
        rows = torch.arange(16 * i, 16 * i + 16) % len(task.train_x)
        optimizer.zero_grad()
        F.cross_entropy(model(task.train_x[rows]), task.train_y[rows]).backward()
        optimizer.step()
    sim = simulate(task, model, "fedhyper")
    before = sim.evaluate()
    assert before["accuracy"] > 0.85
    first = sim.run_round()
    sim.close()
    assert first["start_trials"] > 0
    assert first["accuracy"] > before["accuracy"] - 0.02
    assert first["test_loss"] < before["test_loss"] * 1.1


# --- the example's data -----------------------------------------------------------------------------------------------


def test_a_file_of_sentences(data: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("a fine film\t1\na tab\tin it\t0\n\n")
    assert data.read(file) == (["a fine film", "a tab\tin it"], [1, 0])


@pytest.mark.parametrize(
    ("content", "told"), [("a film\n", "line 1"), ("good\t1\nbad\t2\n", "line 2"), ("", "line 1"), (None, "README")]
)
def test_a_bad_file_is_one_line(data: ModuleType, tmp_path: Path, content: str | None, told: str) -> None:
    file = tmp_path / "train.tsv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=told) as error:
        data.read(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


class Words:
    """A tokenizer's call: every word is its length."""

    def __call__(self, sentences: list[str], *, max_length: int, **_: Any) -> dict[str, Tensor]:
        rows = [[len(word) for word in sentence.split()][:max_length] for sentence in sentences]
        return {"input_ids": torch.tensor([row + [0] * (max_length - len(row)) for row in rows])}


def test_tokens_are_kept_beside_the_data_until_it_changes(data: ModuleType, tmp_path: Path) -> None:
    files, calls = [tmp_path / "train.tsv", tmp_path / "dev.tsv"], []
    files[0].write_text("a fine film\t1\ndull\t0\n")
    files[1].write_text("so so\t0\n")

    def make() -> dict[str, Tensor]:
        calls.append(1)
        return dict(data.tokens(files, Words()))

    first, again = (data.cached(tmp_path, files, make) for _ in range(2))
    assert len(calls) == 1
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert again["train_x"][:, :4].tolist() == [[1, 4, 4, 0], [4, 0, 0, 0]]
    assert again["train_x"].shape == (2, data.LENGTH)
    assert again["test_y"].tolist() == [0]
    files[0].write_text("a fine film\t1\ndull\t0\nnew\t1\n")
    assert len(data.cached(tmp_path, files, make)["train_x"]) == 3
    assert not list(tmp_path.glob("*.[0-9]*")), "no half-written file stays"


def test_the_stand_in_is_the_same_every_time(data: ModuleType) -> None:
    one, two = data.made_up(), data.made_up()
    assert torch.equal(one.train_x, two.train_x)
    assert one.labels.mean() == 0.5
    assert int(one.train_x.max()) < WORDS
    assert (one.train_x[:, 0] > 0).all(), "no sentence is empty"
