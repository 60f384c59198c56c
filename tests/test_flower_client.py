"""The client's side: the right optimizer, the server's rate checked again, and a reply the server can use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedhyper import FedHyperCL, FedHyperG
from fedhyper.client import HyperSGD
from fedhyper.flower import FedHyper, client_optimizer, identify, local_lr, train_reply
from tests.flower_support import LocalGrid


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def message(lr: Any = 0.05, rule: dict[str, Any] | None = None, delta: Any = None, server_round: int = 1) -> Message:
    config: dict[str, Any] = {"local-lr": lr, "server-round": server_round}
    if rule is not None:
        settings = {"lr": 0.05, "bound": 10.0, "bounds": "relative", "hypergrad": "inner", "apply": "add"}
        settings |= {"hyper_lr": 1.0, "global_term": "add", "epsilon": 0.1, "global_lr": 1.0}
        config |= {f"fedhyper.client.{key}": value for key, value in (settings | rule).items()}
    if delta is not None:
        config["fedhyper.delta"] = b"".join(np.asarray(v).tobytes() for v in delta.values())
        config["fedhyper.delta-names"] = list(delta)
        config["fedhyper.delta-type"] = str(next(iter(delta.values())).dtype) if delta else "float32"
    content = {"arrays": ArrayRecord(make_model().state_dict()), "config": ConfigRecord(config)}
    return Message(RecordDict(content), 7, "train")


def deltas(value: float, dtype: Any = np.float32) -> dict[str, Any]:
    return {name: np.full(tuple(p.shape), value, dtype) for name, p in make_model().named_parameters()}


def test_sgd_at_the_servers_rate_with_the_users_options() -> None:
    optimizer = client_optimizer(make_model(), message(0.03), momentum=0.9, weight_decay=1e-3)
    assert type(optimizer) is torch.optim.SGD
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.03, 0.9, 1e-3)


@pytest.mark.parametrize(
    ("sent", "used"),
    [
        (math.nan, 1e-8),
        (math.inf, 1e-8),
        (-math.inf, 1e-8),
        (-1.0, 1e-8),
        (0, 1e-8),
        (1e30, 10.0),
        ("x", 1e-8),
        (0.5, 0.5),
    ],
)
@pytest.mark.parametrize("rule", [None, {}])
def test_a_bad_rate_never_reaches_a_step(sent: Any, used: float, rule: Any) -> None:
    assert local_lr(message(sent)) == used
    model = make_model()
    optimizer = client_optimizer(model, message(sent, rule), local_steps=4)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).tanh().mean().backward()
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert 0 < optimizer.param_groups[0]["lr"] <= 10.0


def test_cl_gets_hypersgd_with_the_servers_rule() -> None:
    rule = {"bound": 4.0, "global_term": "sign", "hyper_lr": 0.5, "lr": 0.02}
    optimizer = client_optimizer(make_model(), message(0.03, rule, deltas(0.1)), local_steps=5, momentum=0.5)
    assert isinstance(optimizer, HyperSGD)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"], group["bound"], group["local_steps"]) == (0.03, 0.02, 4.0, 5)
    assert (group["global_term"], group["hyper_lr"], group["momentum"]) == ("sign", 0.5, 0.5)
    assert all((state["delta"] == 0.1).all() for state in optimizer.state.values())


def test_cl_needs_the_number_of_steps() -> None:
    with pytest.raises(ValueError, match="local_steps"):
        client_optimizer(make_model(), message(rule={}))


@pytest.mark.parametrize(
    "delta", [{}, deltas(math.nan), deltas(math.inf), {k: v[..., :1] for k, v in deltas(1.0).items()}]
)
def test_a_bad_delta_is_left_out(delta: Any) -> None:
    optimizer = client_optimizer(make_model(), message(rule={}, delta=delta), local_steps=2)
    assert not any("delta" in state for state in optimizer.state.values())


def test_half_precision_deltas_arrive_in_the_parameters_type() -> None:
    optimizer = client_optimizer(make_model(), message(rule={}, delta=deltas(0.25, np.float16)), local_steps=2)
    assert all(state["delta"].dtype == torch.float32 for state in optimizer.state.values())
    assert all((state["delta"] == 0.25).all() for state in optimizer.state.values())


def test_the_servers_bound_cannot_lift_the_rate_over_the_clients_own_limit() -> None:
    optimizer = client_optimizer(make_model(), message(5.0, {"lr": 5.0, "bound": 1e9}), local_steps=2)
    group = optimizer.param_groups[0]
    assert group["initial_lr"] * group["bound"] == 10.0
    with pytest.raises(ValueError, match="global_term"):
        client_optimizer(make_model(), message(rule={"global_term": "evil"}), local_steps=2)


def test_a_message_of_another_server_is_named() -> None:
    plain = Message(RecordDict({"config": ConfigRecord({"lr": 0.1})}), 7, "train")
    with pytest.raises(ValueError, match="wrap the server's strategy"):
        client_optimizer(make_model(), plain)


def torch_app(seen: dict[str, list[Any]]) -> ClientApp:
    """An ordinary torch client: two lines of it are ours."""
    app = identify(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        partition = int(context.node_config["partition-id"])
        generator = torch.Generator().manual_seed(partition)
        x = torch.randn(20, 3, generator=generator)
        y = (x.sum(1) > 0).long()
        optimizer = client_optimizer(model, message, local_steps=4, context=context)
        first = math.nan
        for i in range(0, 20, 5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[i : i + 5]), y[i : i + 5])
            loss.backward()
            optimizer.step()
            first = first if i else loss.item()
        state = next(iter(optimizer.state.values()), {})
        seen.setdefault("delta", []).append(state.get("delta"))
        seen.setdefault("rate", []).append(optimizer.param_groups[0]["lr"])
        return train_reply(message, model, examples=len(x), loss=first, context=context, accuracy=0.5)

    return app


def start(schedule: Any, send: Any = "full", rounds: int = 4) -> tuple[FedHyper, Any, dict[str, list[Any]]]:
    seen: dict[str, list[Any]] = {}
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), schedule, seed=0, send_delta=send, local_lr=0.05)
    grid = LocalGrid(torch_app(seen), 3)
    return strategy, strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=rounds), seen


@pytest.mark.parametrize("schedule", ["auto", "g", "sl", "cl", "g+cl", "g+sl"])
def test_every_schedule_trains_a_torch_model_with_batchnorm(schedule: str) -> None:
    strategy, result, seen = start(schedule, rounds=6)
    # no training loss is reported: auto cannot tell the rates of its first round apart, and takes the three lowest's
    assert [record["clients_used"] for record in strategy.history] == [3] * 6
    assert result.arrays["1.num_batches_tracked"].numpy() == 6 * 4
    rates = seen["rate"]
    assert (len(set(rates)) > 1) == (schedule != "g")
    assert {"accuracy", "fedhyper.local-lr"} <= set(result.train_metrics_clientapp[1])
    assert not any(key in result.train_metrics_clientapp[1] for key in ("fedhyper.loss", "fedhyper.partition"))


def test_a_client_that_keeps_the_weights_needs_no_delta_on_the_wire() -> None:
    rules = (FedHyperG(), FedHyperCL(lr=0.05, local_steps=1))
    _, full, seen_full = start(rules, "full")
    _, cached, seen_cached = start(rules, "cached")
    assert (
        [d is None for d in seen_cached["delta"]] == [d is None for d in seen_full["delta"]] == [True] * 3 + [False] * 9
    )
    for a, b in zip(seen_full["delta"][3:], seen_cached["delta"][3:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-7)
    for name in full.arrays:
        np.testing.assert_allclose(full.arrays[name].numpy(), cached.arrays[name].numpy(), rtol=1e-4, atol=1e-6)


def test_kept_weights_of_an_older_round_are_not_used() -> None:
    context = Context(1, 7, {}, RecordDict(), {})
    for server_round, expected in ((1, False), (2, True), (4, False), (5, True)):
        sent = message(rule={}, server_round=server_round)
        optimizer = client_optimizer(make_model(), sent, local_steps=2, context=context)
        assert any("delta" in state for state in optimizer.state.values()) == expected


def test_the_reply_has_what_the_server_reads() -> None:
    context = Context(1, 7, {"partition-id": 4, "num-partitions": 9}, RecordDict(), {})
    reply = train_reply(message(server_round=3), make_model(), examples=10, loss=0.7, context=context, f1=0.2)
    metrics = reply.content["metrics"]
    assert isinstance(metrics, MetricRecord)
    assert dict(metrics.items()) == {
        "num-examples": 10,
        "f1": 0.2,
        "fedhyper.loss": 0.7,
        "fedhyper.sq-norm": 0.0,
        "fedhyper.round": 3,
        "fedhyper.partition": 4,
    }
    assert list(reply.content["arrays"]) == list(make_model().state_dict())
