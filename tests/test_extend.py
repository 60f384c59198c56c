"""Things of one's own: the page that shows how runs through ``run`` and ``sweep``, and what is wrong is one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from fedhyper.errors import UserError
from fedhyper.sim.registry import LOCALS, MODELS, Registry, register_model
from tests.sim_support import make_simulation, run

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text("utf-8")


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with the page's code in ``mine.py`` and its config in ``mine.toml``."""
    (tmp_path / "mine.py").write_text("\n".join(code("python")))
    (tmp_path / "mine.toml").write_text(code("toml")[0])
    return tmp_path


def fedhyper(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedhyper.lab.cli", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "FEDHYPER_IMPORT"}
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=120, env=environment)


def works(here: Path, *arguments: str) -> str:
    done = fedhyper(here, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(here: Path, code: int, *arguments: str) -> str:
    done = fedhyper(here, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_the_page_runs(here: Path) -> None:
    works(here, "run", "mine.toml", "--import", "mine.py", "--no-report", "--out", "one")
    env = json.loads((here / "one" / "env.json").read_text())
    [told] = env["imports"]
    assert (told["import"], told["module"], told["file"]) == ("mine.py", "mine", str(here / "mine.py"))
    assert len(told["sha256"]) == 64
    config = (here / "one" / "config.toml").read_text()
    assert 'model = "waves"' in config
    assert "ratio = 4" in config
    assert "pull = 0.0" in config

    # a module's name does as well as its file; a task's own model; the regression; the slow engine to rounding
    works(here, "run", "mine.toml", "model=mlp", "model_options={}", "--import", "mine", "--no-report", "--out", "two")
    slow = ["run", "mine.toml", "engine=sequential", "--import", "mine.py", "--no-report", "--out", "slow"]
    works(here, *slow)
    one, other = (json.loads((here / name / "summary.json").read_text()) for name in ("one", "slow"))
    assert one["final_loss"] == pytest.approx(other["final_loss"], rel=1e-4)
    numbers = ["task=waves-height", "method=fedavg", "rounds=20", "local_lr=0.05", "--import", "mine.py", "--no-report"]
    works(here, "run", "mine.toml", *numbers, "--out", "numbers")
    assert json.loads((here / "numbers" / "summary.json").read_text())["final_accuracy"] > 0.9


def test_continued_with_the_import_and_not_without(here: Path) -> None:
    start = ["run", "mine.toml", "--no-report", "--out", "one"]
    works(here, *start, "--import", "mine.py")
    told = fails(here, 4, *start, "rounds=5", "--resume")
    assert "one was started with --import mine.py; add it" in told
    works(here, *start, "rounds=5", "--resume", "--import", "mine.py")
    (here / "mine.py").write_text((here / "mine.py").read_text() + "\n# changed\n")
    done = fedhyper(here, *start, "rounds=6", "--resume", "--import", "mine.py")
    assert done.returncode == 0
    assert "has changed since" in done.stderr


def test_a_sweep_imports_in_its_processes(here: Path) -> None:
    axes = ["method=signs,signs+adam,fedavg", "seed=0..1", "rounds=2", "--no-report", "--out", "grid"]
    printed = works(here, "sweep", "mine.toml", *axes, "--import", "mine.py")
    assert "signs" in printed
    cells = sorted((here / "grid" / "cells").iterdir())
    assert len(cells) == 6
    for cell in cells:
        assert json.loads((cell / "summary.json").read_text())["status"] == "finished"
        assert json.loads((cell / "env.json").read_text())["imports"][0]["module"] == "mine"
    works(
        here,
        "run",
        "mine.toml",
        "method=signs",
        "seed=1",
        "rounds=2",
        "--no-report",
        "--out",
        "r",
        "--import",
        "mine.py",
    )
    alone, cell = (
        json.loads((path / "summary.json").read_text())["weights_sha256"]
        for path in (here / "r", here / "grid" / "cells" / "method=signs,seed=1")
    )
    assert alone == cell
    assert "was started with --import mine.py" in fails(here, 4, "sweep", "mine.toml", *axes)
    works(here, "sweep", "mine.toml", *axes, "--import", "mine.py")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "method 'mine' is NoneType; return a Method, such as given.method()"),
        ("raise ValueError('no good')", "method 'mine' cannot be made: ValueError: no good"),
        ("given.none", "method 'mine' cannot be made: AttributeError"),
    ],
)
def test_a_method_that_cannot_be_made_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "own.py").write_text(
        "from fedhyper.sim.registry import register_method\n"
        f"@register_method('mine', 'does not work')\ndef mine(given):\n    {body}\n"
    )
    for command in (["run", "digits", "method=mine"], ["methods"], ["run", "digits", "options.x=1"]):
        assert f"--import own.py: {said}" in fails(tmp_path, 2, *command, "--import", "own.py")


def test_partition_and_methods_take_it_too(here: Path) -> None:
    record = json.loads(works(here, "partition", "mine.toml", "--import", "mine.py", "--json"))
    assert record["sizes"] == [200, 50] * 4
    printed = works(here, "methods", "signs", "--import", "mine.py")
    assert "options.factor = 0.995  (in (0, 1])" in printed
    assert "options.pull = 0.0  (at least 0)  how strongly" in printed
    names = [json.loads(line)["name"] for line in works(here, "methods", "--json", "--import", "mine.py").splitlines()]
    assert {"signs", "signs+momentum", "signs+adam", "fedhyper"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mine.toml"], "(if a module of yours registers it: --import MODULE)"),
        (["mine.toml", "--import", "none.py"], "--import none.py: "),
        (["mine.toml", "--import", "nothing_here"], "there is no such module"),
        (["mine.toml", "--import", "broken.py"], "--import broken.py: NameError"),
        (["mine.toml", "--import", "taken.py"], "task 'digits' is built in; register yours under another name"),
        (["mine.toml", "--import", "beside/json.py"], "rename the file"),
        (["mine.toml", "--import", "ends.py"], "--import ends.py: SystemExit"),
        (["mine.toml", "--import", "mine.py", "options.factr=1"], "did you mean 'options.factor'?"),
        (["mine.toml", "--import", "mine.py", "options.pull=-1"], "options.pull = -1 must be at least 0"),
        (["mine.toml", "--import", "mine.py", "partition.ratoi=1"], "did you mean 'partition.ratio'?"),
        (["mine.toml", "--import", "mine.py", "partition.ratio=x"], "must be a finite number"),
        (["mine.toml", "--import", "mine.py", "model_options.width=x"], "must be a whole number"),
    ],
)
def test_what_is_wrong_is_one_line(here: Path, arguments: list[str], says: str) -> None:
    (here / "broken.py").write_text("undefined\n")
    (here / "beside").mkdir()
    (here / "beside" / "json.py").write_text("")
    (here / "ends.py").write_text("raise SystemExit(0)\n")
    (here / "taken.py").write_text(
        textwrap.dedent("""
        from fedhyper.sim.registry import register_task
        register_task("digits", model="mlp")(lambda: None)
        """)
    )
    assert says in fails(here, 2, "run", *arguments, "--out", "x")


def test_a_name_is_replaced_by_its_own_module_only() -> None:
    registry: Registry[int] = Registry("thing", "fedhyper.errors")
    registry.register("a", 1, origin="mine")
    registry.register("a", 2, origin="mine")
    assert registry.get("a") == 2
    with pytest.raises(UserError, match="thing 'a' is that of mine"):
        registry.register("a", 3, origin="other")
    for name in ("", "a b", "x" * 101, "é", 3):
        with pytest.raises(UserError, match="a name is made of"):
            registry.register(name, 1, origin="mine")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be some of images, vectors, characters"):
        register_model("x", reads=("sounds",))


def test_the_fast_rules_have_slow_twins() -> None:
    assert set(LOCALS) == {
        *("sgd", "momentum", "nesterov", "adam", "adamw"),
        *("hyper", "released", "delta", "polyak"),
    }


def test_layers_without_a_rule_start_from_the_seed() -> None:
    import torch
    from torch import nn

    from fedhyper.sim.models import make_model

    @register_model("recurrent")
    def recurrent(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.GRUCell(shape[0], outputs)

    try:
        torch.manual_seed(4)
        one, same, other = (make_model("recurrent", (2,), 2, seed=seed) for seed in (1, 1, 2))
    finally:
        MODELS.remove("recurrent")
    weights = [next(model.parameters()) for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("kind", ["yes-no", "number", "numbers", "sequence"])
def test_other_objectives_train_alike_on_every_engine(kind: str) -> None:
    import torch
    from torch import nn

    from fedhyper.sim.data.objectives import SEQUENCE, YES_NO, numbers
    from fedhyper.sim.data.tasks import Task

    source = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=source)
    torch.manual_seed(0)
    if kind == "sequence":
        y, classes, objective = (x > 0).long(), 2, SEQUENCE
        model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Unflatten(1, (6, 2)))
    elif kind == "yes-no":
        y, classes, objective = (x.sum(1) > 0).long(), 1, YES_NO
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 1))
    else:
        y = torch.stack([x.sum(1), x[:, 0]], 1) if kind == "numbers" else x.sum(1)
        classes, objective = (2 if kind == "numbers" else 1), numbers(y[300:])
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, classes))
    task = Task("own", x[:300], y[:300], x[300:], y[300:], classes, objective=objective)
    rate = 2.0 if kind == "sequence" else 0.1  # its loss is a mean over places: gradients are that much shorter
    slow, fast = (
        run(make_simulation("fedavg", task=task, model=model, engine=engine, local_lr=rate), 8)
        for engine in ("sequential", "fast")
    )
    assert slow[-1]["accuracy"] == pytest.approx(fast[-1]["accuracy"], abs=1e-3)
    assert slow[-1]["test_loss"] == pytest.approx(fast[-1]["test_loss"], rel=1e-3)
    assert fast[-1]["accuracy"] > 0.8
    assert fast[-1]["test_loss"] < fast[0]["test_loss"]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("too many", r"the model gives \(2, 3\), and the objective needs \(2, 2\); change the model"),
        ("yes-no", r"the model gives \(2, 2\), and the objective needs \(2, 1\).* classes \(now 2\)"),
        ("number", r"the model gives \(2, 2\), and the objective needs \(2,\)"),
        ("tuple", r"the model gives tuple, and"),
        ("loss", r"the objective's loss of 2 examples is a tensor of shape \(2,\); it must be one number for them all"),
        ("score", r"the objective's score of 2 examples is float; it must be one number each, a tensor \[n\]"),
        ("frozen", "nothing to train: every parameter is frozen"),
    ],
)
def test_a_model_and_a_task_that_do_not_go_together_are_refused_in_one_line(what: str, says: str) -> None:
    import torch
    from torch import nn

    from fedhyper.sim.data.objectives import CLASSES, YES_NO, numbers
    from fedhyper.sim.data.tasks import Task

    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    y, classes, outputs, objective = (x[:, 0] > 0).long(), 2, 2, CLASSES
    if what == "too many":
        outputs = 3
    if what == "yes-no":
        objective = YES_NO
    if what == "number":
        y, classes, objective = x[:, 0], 1, numbers(x[:, 0])
    if what == "loss":
        objective = replace(CLASSES, loss=lambda outputs, targets: (outputs.argmax(1) - targets).float())
    if what == "score":
        objective = replace(CLASSES, score=lambda outputs, targets: 1.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, outputs))
    if what == "tuple":
        model.register_forward_hook(lambda _, inputs, outputs: (outputs, inputs))
    model.requires_grad_(what != "frozen")
    task = Task("own", x[:30], y[:30], x[30:], y[30:], classes, objective=objective)
    with pytest.raises(UserError, match=says):
        make_simulation("fedavg", task=task, model=model, local_lr=0.1)
    assert model.training


def test_a_model_of_doubles_fits_its_task() -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    simulation = make_simulation("fedavg", model=model, engine="sequential", dtype=torch.float64, local_lr=0.1)
    assert run(simulation, 1)[0]["accuracy"] is not None


def test_targets_of_an_unknown_kind_are_refused() -> None:
    from fedhyper.sim.data.objectives import CLASSES

    with pytest.raises(UserError, match="targets = 'classes'; did you mean 'class'"):
        replace(CLASSES, targets="classes")  # type: ignore[arg-type]


def test_r2_is_what_statistics_has() -> None:
    import torch

    from fedhyper.sim.data.objectives import mean_score, numbers

    y = torch.tensor([1.0, 2.0, 3.0, 6.0])
    objective = numbers(y)
    assert mean_score(objective.score(y[:, None], y)) == 1.0
    assert mean_score(objective.score(torch.full((4, 1), 3.0), y)) == 0.0
    # errors 1, 0, 0, 2: 5 / ((-2)² + (-1)² + 0 + 3²) = 5/14
    assert mean_score(objective.score(torch.tensor([[2.0], [2.0], [3.0], [4.0]]), y)) == pytest.approx(1 - 5 / 14)
    assert objective.loss(torch.tensor([[2.0], [2.0], [3.0], [4.0]]), y).item() == pytest.approx(5 / 4)
