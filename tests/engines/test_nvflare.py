"""NVFlare: the controller on replies by hand, and real runs of its simulator. Run by ``make test-engines``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("nvflare", reason="run by make test-engines, in an environment of its own")
import numpy as np
import psutil
import torch
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.app_common.workflows.fedavg import FedAvg

from fedhyper import Server, auto
from fedhyper.errors import CheckpointRefused, UserError
from fedhyper.nvflare import FedHyper, FedHyperRecipe, local_lr, reply
from fedhyper.storage import checkpoint

pytestmark = pytest.mark.engines

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
Arrays = dict[str, Any]


# --- the controller, on replies by hand ---------------------------------------------------------------------------


def first() -> Arrays:
    """A model with BatchNorm: three arrays to train, one without axes, a statistic and a counter."""
    made = np.random.default_rng(0)
    return {
        "layer.weight": made.normal(size=(3, 2)).astype(np.float32),
        "layer.bias": np.zeros(3, np.float32),
        "scale": np.array(2.0, np.float32),
        "norm.running_mean": np.zeros(3, np.float32),
        "norm.num_batches_tracked": np.array(0),
    }


def trained(name: str, t: int, sent: FLModel, kind: ParamsType = ParamsType.FULL) -> FLModel:
    """What client ``name`` sends back in round ``t``: the rate it was given times some gradient."""
    made = np.random.default_rng([ord(name[-1]), t])
    rate = sent.meta["local_lrs"].get(name, sent.meta["local_lr"]) if sent.meta else 0.1
    noise = {k: made.normal(size=v.shape).astype(v.dtype) for k, v in sent.params.items() if v.dtype.kind == "f"}
    after = {k: v - np.float32(rate) * (v + noise[k]) if k in noise else v + 7 for k, v in sent.params.items()}
    params = {k: after[k] - sent.params[k] for k in after} if kind == ParamsType.DIFF else after
    loss = float(sum((v**2).sum() for v in sent.params.values()))
    metrics, examples = {"loss": loss, "train_loss": loss - rate if rate < 3 else 99.0}, 10 + ord(name[-1])
    return FLModel(params=params, params_type=kind, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": examples})


class ByHand(FedHyper):
    """The controller without NVFlare's engine around it: ``answers(name, t, sent)`` are the clients."""

    def __init__(self, answers: Any = trained, clients: int = 3, **settings: Any) -> None:
        super().__init__(num_clients=clients, model=first(), **{"num_rounds": 6, **settings})
        self.answers, self.names = answers, [f"site-{i}" for i in reversed(range(clients))]
        self.fl_ctx, self.engine, self.abort_signal = MagicMock(), MagicMock(), MagicMock()
        self.saved: list[Arrays] = []
        self.persistor = MagicMock()
        self.persistor.save = lambda learnable, _: self.saved.append(learnable["weights"])

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        return self.names

    def get_num_standing_tasks(self) -> int:
        return 0

    def event(self, *_: Any) -> None: ...

    def fire_event_with_data(self, *_: Any) -> None: ...

    def info(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: ByHand, task_name: str, targets: list[str], data: FLModel, callback: Any) -> None:
        for name in targets:
            answer = self.answers(name, data.current_round, data)
            if answer is not None:
                answer.meta["client_name"] = name
                callback(answer)

    monkeypatch.setattr(FedAvg, "send_model", send)


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_the_same_numbers_as_the_server_loop(kind: ParamsType) -> None:
    controller = ByHand(lambda name, t, sent: trained(name, t, sent, kind))
    controller.run()
    names = ["layer.weight", "layer.bias", "scale"]
    start = first()
    statistics = {"norm.running_mean": start["norm.running_mean"]}
    server = Server({k: start[k] for k in names}, auto(), statistics=statistics, rounds=6)
    counter = 0
    for t in range(6):
        sites = sorted(controller.names)
        rates = server.rates(3)
        now = {**server.weights, **server.state.now.statistics, "norm.num_batches_tracked": np.array(counter)}
        meta = {"local_lr": server.local_lr, "local_lrs": dict(zip(sites, rates, strict=True))}
        came = [trained(name, t, FLModel(params=now, meta=meta)) for name in sites]
        decision = server.step(
            [{k: server.weights[k] - one.params[k] for k in names} for one in came],
            loss=[one.metrics["loss"] for one in came],
            train_loss=[one.metrics["train_loss"] for one in came],
            examples=[one.meta["NUM_STEPS_CURRENT_ROUND"] for one in came],
            statistics=[{"norm.running_mean": one.params["norm.running_mean"]} for one in came],
        )
        counter += 7 if decision.action == "step" else 0
    close = np.array_equal if kind == ParamsType.FULL else np.allclose  # a difference is rounded once more
    assert all(close(np.squeeze(controller.server.weights[k]), server.weights[k]) for k in names)
    means = [one.state.now.statistics["norm.running_mean"] for one in (controller.server, server)]
    assert close(*means)
    assert server.local_lr != 0.01  # rates were tried out
    kept = controller.saved[-1]
    assert close(kept["layer.weight"], server.averaged["layer.weight"])
    assert kept["norm.num_batches_tracked"] == counter


def test_a_client_that_is_alone_tries_rates_too() -> None:
    used: list[float] = []

    def answers(name: str, t: int, sent: FLModel) -> FLModel:
        used.append(sent.meta["local_lrs"].get(name, sent.meta["local_lr"]))
        return trained(name, t, sent)

    ByHand(answers, clients=1, num_rounds=20).run()
    assert 0.01 not in used[:4]  # the hint: what is tried is not it
    assert len(set(used[:4])) == 4


def test_the_order_of_arrival_changes_no_bit() -> None:
    one, two = ByHand(), ByHand()
    two.names.reverse()
    one.run()
    two.run()
    assert np.array_equal(one.server.weights["layer.weight"], two.server.weights["layer.weight"])


@pytest.mark.parametrize("odd", [{"layer.weight": np.ones((9, 9))}, {"layer.weight": np.full((3, 2), np.nan)}])
def test_a_reply_that_cannot_be_believed_is_left_out(odd: Arrays) -> None:
    def answers(name: str, t: int, sent: FLModel) -> FLModel:
        answer = trained(name, t, sent)
        if name == "site-1":
            answer.params |= odd
        return answer

    def without(name: str, t: int, sent: FLModel) -> FLModel | None:
        return None if name == "site-1" else trained(name, t, sent)

    controllers = [ByHand(answer, schedule="g+sl") for answer in (answers, without)]
    for controller in controllers:
        controller.run()
    one, two = (controller.server.weights["layer.weight"] for controller in controllers)
    assert np.array_equal(one, two)


def test_a_round_without_replies_changes_nothing() -> None:
    controller = ByHand(lambda *_: None)
    controller.run()
    assert np.array_equal(controller.server.weights["layer.weight"], first()["layer.weight"])
    assert controller.server.round == 6


def test_a_killed_job_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = ByHand()
    whole.run()
    file = str(tmp_path / "state.ckpt")
    for rounds in (1, 4, 6):  # a checkpoint is taken after every round, so a kill is a job with fewer rounds
        controller = ByHand(num_rounds=rounds, checkpoint=file)
        controller.run()
    assert controller.server.round == 6
    assert np.array_equal(controller.saved[-1]["layer.weight"], whole.saved[-1]["layer.weight"])
    with pytest.raises(CheckpointRefused, match="schedule was auto and now is g"):
        ByHand(checkpoint=file, schedule="g").run()


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="schedule must be one of auto"):
        FedHyper(schedule="cl")
    controller = ByHand()
    controller.model = {"w": torch.zeros(2)}
    with pytest.raises(UserError, match="must be NUMPY"):
        controller.run()


def test_what_a_client_reads_and_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvflare.client.get_site_name", lambda: "site-2")
    tried = {"site-1": 0.1, "site-2": 0.2}
    assert local_lr(FLModel(params={}, meta={"local_lr": 0.5, "local_lrs": tried})) == 0.2
    assert local_lr(FLModel(params={}, meta={"local_lr": 0.5, "local_lrs": {}})) == 0.5
    assert local_lr(FLModel(params={}, meta={}), default=0.3) == 0.3
    sent = reply(torch.nn.Linear(2, 1), examples=5, loss=1.5, accuracy=0.5)
    assert (sent.metrics, sent.meta["NUM_STEPS_CURRENT_ROUND"]) == ({"loss": 1.5, "accuracy": 0.5}, 5)


# --- jobs ---------------------------------------------------------------------------------------------------------


def test_a_jobs_config_has_every_setting_and_the_allow_list_that_production_needs(tmp_path: Path) -> None:
    sys.path.insert(0, str(EXAMPLE))
    from digits import Net

    recipe = FedHyperRecipe(
        model=Net(), min_clients=4, num_rounds=9, train_script=str(EXAMPLE / "client.py"), schedule="g+sl", local_lr=0.2
    )
    recipe.export(str(tmp_path))
    (file,) = tmp_path.rglob("config_fed_server.json")
    (workflow,) = json.loads(file.read_text())["workflows"]
    told = {"num_clients": 4, "num_rounds": 9, "schedule": "g+sl", "local_lr": 0.2}
    assert told.items() <= workflow["args"].items()

    paths = [workflow["path"], workflow["args"]["aggregator"]["path"], "fedhyper.torch.HyperServer"]
    resources = tmp_path / "resources.json"
    workspace = MagicMock(get_resources_file_path=lambda: str(resources), get_root_dir=lambda: str(tmp_path))
    for extra, allowed in (([], False), (["fedhyper."], True)):
        resources.write_text(json.dumps({"class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *extra]}))
        for path in paths:
            try:
                ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=workspace)
                assert allowed, path
            except UnsafeComponentError:
                assert not allowed, path


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def job(work: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The example, in a process of its own."""
    work.mkdir(exist_ok=True)
    with open(work / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "job.py", "--work", str(work), *arguments],
            cwd=EXAMPLE,
            env=ENVIRONMENT,
            stdout=log,
            stderr=log,
        )


def rounds(work: Path) -> int:
    """Rounds in the checkpoint of a job."""
    file = work / "checkpoint.ckpt"
    return int(checkpoint.load(file)[1]["loop"][0]) if file.exists() else 0


def accuracy(work: Path) -> float:
    """Of the model that NVFlare saved."""
    sys.path.insert(0, str(EXAMPLE))
    from digits import Net, load

    (file,) = work.rglob("server/simulate_job/app_server/FL_global_model.pt")
    net, (_, (x, y)) = Net(), load(0, 1)
    net.load_state_dict(torch.load(file, weights_only=False)["model"])
    return float((net(x).argmax(1) == y).float().mean())


@pytest.mark.timeout(900)
def test_digits_from_a_rate_100_times_too_small_and_a_killed_server(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ("--clients", "3", "--rounds", "15", "--local-lr", "0.001")
    assert job(whole, *arguments).wait() == 0
    assert accuracy(whole) > 0.9

    process = job(killed, *arguments)
    while rounds(killed) < 4:
        assert process.poll() is None, (killed / "log.txt").read_text()[-2000:]
        time.sleep(0.2)
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:  # the server is a child of its own
        one.kill()
    process.wait()
    before = rounds(killed)
    assert 4 <= before < 15
    assert job(killed, *arguments).wait() == 0
    assert f"going on after round {before}" in (killed / "log.txt").read_text()
    one, two = (checkpoint.load(work / "checkpoint.ckpt") for work in (whole, killed))
    assert one[1] == two[1]
    assert all(np.array_equal(one[0][name], two[0][name]) for name in one[0])


@pytest.mark.timeout(600)
def test_the_optimizer_in_nvflares_own_fedopt(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(EXAMPLE)!r})
from digits import Net
from nvflare.app_opt.pt.recipes.fedopt import FedOptRecipe
from nvflare.recipe.sim_env import SimEnv
recipe = FedOptRecipe(
    name="opt", model=Net(), min_clients=2, num_rounds=4, train_script="client.py",
    optimizer_args={{"path": "fedhyper.torch.HyperServer", "args": {{"lr": 1.0}}}})
recipe.execute(SimEnv(num_clients=2, workspace_root={str(tmp_path)!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=EXAMPLE, env=ENVIRONMENT, capture_output=True, text=True)
    said = done.stdout + done.stderr
    rates = [float(rate) for rate in re.findall(r"FedOpt \(fedhyper\.torch\.HyperServer.* lr: ([0-9.]+)", said)]
    assert len(rates) == 4, said[-3000:]
    assert rates[0] == 1.0
    assert rates == sorted(set(rates))  # the updates agree, so the rate rises every round
