"""The fine-tuning example with transformers and PEFT, at its smoke size: no weights, no data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install -r examples/finetune/requirements.txt, as the example asks")
pytest.importorskip("peft", reason="pip install -r examples/finetune/requirements.txt, as the example asks")
from flwr.app import Context, RecordDict

from tests.flower_support import LocalGrid

pytestmark = pytest.mark.filterwarnings("default")  # other people's warnings
EXAMPLE = Path(__file__).parents[1] / "examples" / "finetune"
TRAINED = 2 * 2 * 2 * 64 * 4 + 2 * 64 + 2  # two layers' query and value, two matrices of 64 × 4 each; the classifier


def test_the_smoke_config_runs_and_sends_adapters_only(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedhyper", "run", "smoke.toml", "rounds=2", "--import", "finetune.plugin"]
    environment = os.environ | {"FEDHYPER_DATA": str(tmp_path / "nothing-here")}
    subprocess.run([*command, "--no-report", "--out", str(out)], cwd=EXAMPLE, check=True, env=environment, timeout=280)
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert first["start_trials"] > 0
    assert first["bytes_up"] == 4 * (4 * TRAINED + 24)  # four clients; losses and a weight besides
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"


def test_a_start_from_pretrained_weights_changes_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRA begins as nothing: the model with adapters says what the model said."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import torch
    from finetune import data, plugin  # type: ignore[import-not-found]  # noqa: F401

    from fedhyper.sim.models import make_model

    task = data.made_up()
    model = make_model("tiny-lora", task.shape, task.classes, seed=0, tokens=True)
    assert not any(value.any() for name, value in model.named_parameters() if "lora_B" in name)
    with torch.no_grad(), model.body.disable_adapter():
        without = model(task.test_x[:5])
    assert torch.equal(model(task.test_x[:5]), without)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the Flower app with ten nodes in this process; the messages that were sent to train, and the last loss."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import torch
    from finetune import client_app, server_app, setting

    def run(**changed: Any) -> tuple[list[Any], float]:
        told = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        config = told | {"size": "tiny"} | changed
        random.seed(0)  # FedAvg draws the order of nodes, and with it who tries which rate
        grid = LocalGrid(client_app.app, 10, run_config=config)
        setting.setting.cache_clear()  # server and nodes share a model here, and the last run's adapters are in it
        server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
        sent = [message for message in grid.sent if message.metadata.message_type == "train"]
        task, net = setting.setting("tiny")
        net.load_state_dict(sent[-1].content["arrays"].to_torch_state_dict(), strict=False)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(net(task.test_x), task.test_y)
        return sent, loss.item()

    return run


def test_the_flower_app_sends_adapters_only_and_finds_a_rate(app: Any) -> None:
    rounds = {"num-server-rounds": 8}
    sent, ours = app(fedhyper=True, **rounds)
    for message in (sent[0], sent[-1]):
        arrays = message.content["arrays"]
        assert sum(array.numpy().size for array in arrays.values()) == TRAINED
        assert all("lora_" in name or name.startswith("head.") for name in arrays)
    assert len({message.content["config"]["lr"] for message in sent[:10]}) > 5, "the first round tries rates out"
    plain, at_its_own = app(fedhyper=False, **rounds)
    assert {message.content["config"]["lr"] for message in plain} == {5e-5}
    assert ours < at_its_own - 0.02
