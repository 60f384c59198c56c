"""pfl: the example's algorithm and ``HyperServer`` in real runs of its simulator. Run by ``make test-engines``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pfl", reason="run by make test-engines, in an environment of its own")
import torch

from fedhyper import Server, auto
from fedhyper.torch import HyperServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "pfl"))
digits: Any = importlib.import_module("digits")
example: Any = importlib.import_module("fedhyper_pfl")


def test_digits_from_a_rate_100_times_too_small() -> None:
    fedavg, _ = digits.run("fedavg", rounds=30)
    fedhyper, _ = digits.run("fedhyper", rounds=30)
    assert fedavg[-1][0] < 0.3
    assert fedhyper[-1][0] > 0.85  # seeds 0 to 5: 0.889, the lowest, to 0.953
    assert fedhyper[0][2] < 0.01 < 0.1 < fedhyper[-1][2]  # the local rate came a long way


def test_the_same_numbers_as_the_server_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Any, dict[str, Any]]] = []
    twins: list[Server] = []

    class Listening(Server):
        def step(self, update: Any, **known: Any) -> Any:
            heard.append(({name: piece.clone() for name, piece in update.items()}, known))
            return super().step(update, **known)

    def make(model: Any, plan: Any) -> Server:
        twins.append(Server({name: piece.clone() for name, piece in model.get_parameters().items()}, plan))
        return Listening(dict(model.get_parameters().items()), plan)

    monkeypatch.setattr(digits, "make_server", make)
    rows, weights = digits.run("fedhyper", rounds=8)
    (twin,) = twins
    for t, (update, known) in enumerate(heard):
        twin.step(update, **known)
        assert rows[t][1:] == (twin.global_lr, twin.local_lr)
        assert known["loss"] > 0
        assert known["sq_norm"] >= sum(float((piece**2).sum()) for piece in update.values())  # the users' mean of it
    assert len(heard) == 8
    assert all(torch.equal(weights[name], twin.weights[name]) for name in weights)


def test_a_killed_run_keeps_its_rates(tmp_path: Path) -> None:
    rows, _ = digits.run("fedhyper", rounds=5, checkpoints=str(tmp_path))
    more, _ = digits.run("fedhyper", rounds=8, checkpoints=str(tmp_path))
    assert len(more) == 4  # pfl counts an iteration when the next one begins: the last is done once more
    assert more[0][2] > rows[-1][2] > 0.002  # the rate rises on from where it was, not from 0.001


def test_the_central_optimizer_in_pfls_own_federated_averaging(tmp_path: Path) -> None:
    rows, weights = digits.run("hyperserver", rounds=6, local_lr=0.03)
    rates = [row[1] for row in rows]
    assert rates[0] == 1.0
    assert rates == sorted(set(rates))  # the updates agree, so the rate rises every round

    net = digits.Net(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = HyperServer(net.parameters(), plan=auto())
    model = digits.PyTorchModel(net, torch.optim.SGD, optimizer)
    model.save(str(tmp_path))  # pfl writes state_dict() and reads it back without pickle
    model.load(str(tmp_path))
    assert weights
