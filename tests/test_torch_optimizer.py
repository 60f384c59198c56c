"""``fedhyper.torch.HyperServer`` without an engine: the same weights as the server loop, however it is hosted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fedhyper import Auto, FedExP, FedHyperG, Momentum, Pair, Server, auto
from fedhyper.torch import HyperServer


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def deltas(rounds: int, seed: int = 0) -> list[list[torch.Tensor]]:
    """Updates that mostly agree, so that the rate moves."""
    made = torch.Generator().manual_seed(seed)
    base = [torch.randn(p.shape, generator=made) for p in model().parameters()]
    return [[0.1 * b + 0.02 * torch.randn(b.shape, generator=made) for b in base] for _ in range(rounds)]


def play(optimizer: HyperServer, net: nn.Module, rounds: list[list[torch.Tensor]]) -> list[float]:
    """As NVFlare and pfl do: zero_grad, Δ into the gradients, step; the rate after each."""
    rates = []
    for delta in rounds:
        optimizer.zero_grad(set_to_none=False)
        for p, piece in zip(net.parameters(), delta, strict=True):
            p.grad = piece.clone() if p.grad is None else p.grad.copy_(piece)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def same(net: nn.Module, weights: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, w) for p, w in zip(net.parameters(), weights, strict=True))


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {"plan": Pair(global_rule=FedHyperG())}),
        ({"lr": 0.5, "bound": 2.0, "hypergrad": "cosine"}, None),
        ({"momentum": 0.9}, {"plan": Pair(global_rule=FedHyperG()), "optimizer": Momentum(momentum=0.9)}),
        ({"plan": Pair(global_rule=FedExP())}, {"plan": Pair(global_rule=FedExP())}),
        ({"plan": auto()}, {"plan": auto()}),
    ],
    ids=["g", "g with settings", "momentum", "fedexp", "auto"],
)
def test_it_is_the_server_loop(arguments: dict[str, Any], settings: dict[str, Any] | None) -> None:
    settings = settings or {"plan": Pair(global_rule=FedHyperG(**arguments))}
    net, rounds = model(), deltas(6)
    server = Server([p.detach().clone() for p in net.parameters()], **settings)
    expected = []
    for delta in rounds:
        server.step(delta)
        expected.append(server.global_lr)
    assert play(HyperServer(net.parameters(), **arguments), net, rounds) == expected
    assert same(net, server.weights)


def test_the_rate_rises_while_updates_agree() -> None:
    net = model()
    rates = play(HyperServer(net.parameters()), net, deltas(5))
    assert rates[0] == 1.0
    assert rates == sorted(rates)
    assert 1.2 < rates[-1] <= 3.0


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.5}, {"plan": auto()}], ids=["g", "momentum", "auto"])
def test_a_new_one_each_round_goes_on_to_the_same_bits(arguments: dict[str, Any], tmp_path: Any) -> None:
    whole, parted, rounds = model(), model(), deltas(6)
    rates = play(HyperServer(whole.parameters(), **arguments), whole, rounds)
    optimizer, resumed = HyperServer(parted.parameters(), **arguments), []
    for delta in rounds:  # FedML makes a new one each round; pfl saves it to a file
        torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
        optimizer = HyperServer(parted.parameters(), **arguments)
        optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
        resumed += play(optimizer, parted, [delta])
    assert resumed == rates
    assert same(parted, [p.detach() for p in whole.parameters()])


def test_a_copy_goes_on_by_itself() -> None:
    net = model()
    optimizer = HyperServer(net.parameters())
    play(optimizer, net, deltas(3))
    twin_net, twin = copy.deepcopy((net, optimizer))
    assert play(twin, twin_net, deltas(2, seed=1)) == play(optimizer, net, deltas(2, seed=1))
    assert same(twin_net, [p.detach() for p in net.parameters()])


def test_a_round_that_is_not_finite_changes_nothing() -> None:
    net = model()
    optimizer = HyperServer(net.parameters())
    play(optimizer, net, deltas(3))
    before, rate = [p.detach().clone() for p in net.parameters()], optimizer.param_groups[0]["lr"]
    bad = deltas(1)[0]
    bad[0][0, 0] = torch.nan
    assert play(optimizer, net, [bad]) == [rate]
    assert same(net, before)


def test_without_gradients_there_was_no_round_and_a_missing_one_is_zero() -> None:
    net = model()
    optimizer = HyperServer(net.parameters())
    optimizer.step()
    assert optimizer.server.round == 0
    first = next(net.parameters())
    before = first.detach().clone()
    for p, piece in zip(list(net.parameters())[1:], deltas(1)[0][1:], strict=True):
        p.grad = piece
    optimizer.step()
    assert optimizer.server.round == 1
    assert torch.equal(first, before)


def test_the_host_has_the_last_word_on_the_weights() -> None:
    net = model()
    optimizer = HyperServer(net.parameters())
    play(optimizer, net, deltas(1))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    delta = [torch.ones_like(p) for p in net.parameters()]
    (rate,) = play(optimizer, net, [delta])
    assert all(torch.equal(p, torch.full_like(p, -rate)) for p in net.parameters())


@pytest.mark.parametrize(("told", "returns"), [(True, True), (False, False)])
def test_a_plan_that_judges_the_weights_needs_the_loss(told: bool, returns: bool) -> None:
    net = model()
    optimizer = HyperServer(net.parameters(), plan=Auto(voices=2))
    seen, returned = [], False
    for t, loss in enumerate([1.0, 0.1, 0.1, 50.0, 50.0, 50.0]):
        for p, piece in zip(net.parameters(), deltas(1, seed=t)[0], strict=True):
            p.grad = piece
        optimizer.step((lambda loss=loss: torch.tensor(loss)) if told else None)
        returned = returned or any(same(net, weights) for weights in seen)
        seen.append([p.detach().clone() for p in net.parameters()])
    assert returned == returns


def test_what_is_refused() -> None:
    net = model()
    optimizer = HyperServer(net.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    play(optimizer, net, deltas(1))
    scheduler.step()
    with pytest.raises(ValueError, match="leave the LR scheduler out"):
        optimizer.step()
    with pytest.raises(ValueError, match="bound"):
        HyperServer(net.parameters(), bound=0.5)
    with pytest.raises(ValueError, match="bound is a setting of FedHyper-G"):
        HyperServer(net.parameters(), plan=auto(), bound=2.0)
    with pytest.raises(ValueError, match="has no loop"):
        HyperServer(net.parameters()).load_state_dict(torch.optim.SGD(net.parameters(), lr=1.0).state_dict())
