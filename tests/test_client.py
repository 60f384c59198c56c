"""The client optimizers: equal to their rules step by step, and well-behaved as torch optimizers."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedhyper import FedHyperCL
from fedhyper.client import DeltaSGD, HyperSGD, PolyakSGD, delta_sgd_rate, hyper_rate, polyak_rate
from fedhyper.client.vectors import FlatModel


def hyper(params: Any, **settings: Any) -> HyperSGD:
    return HyperSGD(params, **{"lr": 0.01, "local_steps": 4} | settings)


# One table, many laws: how each is built, and settings that work.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "hyper": hyper,
    "hyper, cosine, log": lambda p, **s: hyper(p, hypergrad="cosine", apply="log", hyper_lr=0.1, **s),
    "hyper, sign": lambda p, **s: hyper(p, global_term="sign", **s),
    "hyper, momentum, decay": lambda p, **s: hyper(p, momentum=0.9, weight_decay=0.01, **s),
    "hyper, per group": lambda p, **s: hyper(p, per_group=True, **s),
    "delta": lambda p, **s: DeltaSGD(p, eta0=0.01, **s),
    "polyak": lambda p, **s: PolyakSGD(p, lr=0.05, **s),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def gradients(model: nn.Module, k: int) -> float:
    """Backward on batch number k."""
    dtype = next(model.parameters()).dtype
    loss = (model(random(6, 4, seed=k).to(dtype)) - random(6, 3, seed=100 + k).to(dtype)).pow(2).mean()
    loss.backward()
    return loss.item()


def take(optimizer: torch.optim.Optimizer, loss: float) -> None:
    optimizer.step(loss=loss) if isinstance(optimizer, PolyakSGD) else optimizer.step()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    rates = []
    for k in steps:
        optimizer.zero_grad()
        take(optimizer, gradients(model, k))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def grad_vector(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


# --- HyperSGD is the pure rule

SETTINGS = [
    {},
    {"hypergrad": "cosine"},
    {"hypergrad": "cosine", "apply": "log", "hyper_lr": 0.3},
    {"global_term": "sign", "epsilon": 0.5},
    {"global_term": "off"},
    {"apply": "relative", "hyper_lr": 2.0},
    {"bounds": "absolute", "bound": 50.0},
    {"bound": 1.0},
]
LOOPS = ["set to none", "zeroed in place", "flat, swapped", "flat, zeroed"]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("given", ["flat", "pieces", "none"])
@pytest.mark.parametrize("loop", LOOPS)
def test_hyper_sgd_equals_the_pure_rule_step_by_step(settings: dict[str, Any], given: str, loop: str) -> None:
    model, twin = make_model(torch.float64), make_model(torch.float64)
    flat = FlatModel(model) if loop.startswith("flat") else None
    delta = 0.01 * random(43, seed=7).double()
    pieces = [x.view(p.shape) for x, p in zip(delta.split([20, 5, 15, 3]), twin.parameters(), strict=True)]
    optimizer = hyper(model.parameters(), delta={"flat": delta, "pieces": pieces, "none": None}[given], **settings)
    rule = FedHyperCL(lr=0.01, local_steps=4, **settings)
    state = rule.init()
    rates = set()
    for k in range(8):
        if flat is None:
            optimizer.zero_grad(set_to_none=loop == "set to none")
        else:
            flat.swap() if loop == "flat, swapped" else flat.zero_grad()
        twin.zero_grad()
        gradients(model, k)
        gradients(twin, k)
        grad = grad_vector(twin)
        state = rule.update(state, grad, 0.0 if given == "none" else delta)
        optimizer.step()
        torch.nn.utils.vector_to_parameters(vector(twin) - state.lr * grad, twin.parameters())
        assert optimizer.param_groups[0]["lr"] == pytest.approx(state.lr, rel=1e-9)
        assert optimizer.param_groups[0]["last_hypergrad"] == pytest.approx(state.hypergrad, rel=1e-9)
        torch.testing.assert_close(vector(model), vector(twin), rtol=1e-9, atol=1e-12)
        rates.add(state.lr)
    assert len(rates) > 2 or settings.get("bound") == 1.0, "the example must move the rate"


def test_hand_worked_trajectory() -> None:
    # Gradients are given. K = 2, delta = (1, 0), lr 1, bound 4:
    # k=0 g=(1,0)           β = 1                                      w = (0,0) − 1·(1,0)     = (−1, 0)
    # k=1 g=(.5,1)          β = 1 + .5 + .5/2        = 1.75            w −= 1.75·(.5,1)        = (−1.875, −1.75)
    # k=2 g=(−1,0)          β = 1.75 − .5 − 1/2      = 0.75            w −= .75·(−1,0)         = (−1.125, −1.75)
    # k=3 g=(2,0)           β = .75 − 2 + 1 → clip ¼                   w −= .25·(2,0)          = (−1.625, −1.75)
    w = nn.Parameter(torch.zeros(2))
    optimizer = HyperSGD([w], lr=1.0, bound=4.0, local_steps=2, delta=torch.tensor([1.0, 0.0]))
    rates = []
    for g in ([1.0, 0.0], [0.5, 1.0], [-1.0, 0.0], [2.0, 0.0]):
        w.grad = torch.tensor(g)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.75, 0.75, 0.25]
    assert w.tolist() == [-1.625, -1.75]


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}]
)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_with_bound_one_it_is_torch_sgd_bit_for_bit(settings: dict[str, float], set_to_none: bool) -> None:
    model, twin = make_model(), make_model()
    ours = hyper(model.parameters(), bound=1.0, delta=random(43), **settings)
    for net, optimizer in (
        (model, ours),
        (twin, torch.optim.SGD(twin.parameters(), lr=0.01, foreach=True, **settings)),
    ):
        for k in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            gradients(net, k)
            optimizer.step()
    assert vector(model).equal(vector(twin))


def test_weight_decay_enters_the_hypergradient_and_momentum_does_not() -> None:
    settings = {"momentum": 0.9, "weight_decay": 0.5}
    model, twin = make_model(torch.float64), make_model(torch.float64)
    optimizer = hyper(model.parameters(), **settings)
    rule = FedHyperCL(lr=0.01, local_steps=4)
    state, buffer = rule.init(), torch.zeros(43, dtype=torch.float64)
    for k in range(6):
        train(model, optimizer, range(k, k + 1))
        twin.zero_grad()
        gradients(twin, k)
        direction = grad_vector(twin) + 0.5 * vector(twin)
        state = rule.update(state, direction)
        buffer = 0.9 * buffer + direction
        torch.nn.utils.vector_to_parameters(vector(twin) - state.lr * buffer, twin.parameters())
        assert optimizer.param_groups[0]["lr"] == pytest.approx(state.lr, rel=1e-9)
    torch.testing.assert_close(vector(model), vector(twin), rtol=1e-9, atol=1e-12)
    assert state.lr != 0.01


def test_one_rate_for_the_model_or_one_for_each_group() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    for per_group, want in ((False, [1.0 + 4.0 - 1.0] * 2), (True, [1.0 + 4.0, 1.0 - 0.5])):
        optimizer = HyperSGD(
            [{"params": [a]}, {"params": [b]}], lr=1.0, bound=6.0, local_steps=1, per_group=per_group, global_term="off"
        )
        for sign in (1.0, -1.0):
            a.grad = torch.tensor([2.0])
            b.grad = torch.tensor([sign * (0.5**0.5 if per_group else 1.0)])
            optimizer.step()
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(want)
    own = hyper([{"params": [a], "lr": 0.5}, {"params": [b]}], per_group=True)  # bounds around each group's own rate
    assert [group["lr"] for group in own.param_groups] == [0.5, 0.01]


def test_a_parameter_without_gradient_counts_as_a_gradient_of_zero() -> None:
    shown = [(1, 1), (1, None), (None, 1), (1, 1), (None, None), (1, 1)]
    for settings in ({}, {"hypergrad": "cosine"}):
        a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
        delta = random(5, seed=9)
        optimizer = HyperSGD([a, b], lr=1.0, bound=100.0, local_steps=2, delta=delta, **settings)
        rule = FedHyperCL(lr=1.0, bound=100.0, local_steps=2, **settings)
        state = rule.init()
        for k, (with_a, with_b) in enumerate(shown):
            g, h = random(2, seed=k), random(3, seed=50 + k)
            a.grad, b.grad = (g if with_a else None), (h if with_b else None)
            optimizer.step()
            if with_a or with_b:
                state = rule.update(state, torch.cat([g * (with_a or 0), h * (with_b or 0)]), delta)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(state.lr, rel=1e-5)


def test_a_loop_that_changes_its_habits_rests_the_rate_for_one_step() -> None:
    model = nn.Linear(4, 3, bias=False)  # a vector of one piece is kept without a copy
    optimizer = hyper(model.parameters(), lr=1e-4, bound=1e6)  # so wide that nothing but rest keeps the rate
    rates = train(model, optimizer, range(3))
    for k in (3, 4, 5):  # from new gradients every step to the same ones: the previous gradient has been written over
        model.zero_grad(set_to_none=False)
        gradients(model, k)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[3] == rates[2]
    assert len(set(rates[3:])) == 3


def test_the_server_may_have_moved_the_rate_since() -> None:
    model = make_model()
    optimizer = hyper(model.parameters(), lr=0.5, initial_lr=0.01)
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.reset(lr=5.0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.reset(lr=0.03)
    assert train(model, optimizer, range(1)) == [0.03]
    optimizer.param_groups[0]["lr"] = math.nan
    assert train(model, optimizer, range(1, 2))[0] > 0
    assert vector(model).isfinite().all()
    assert hyper(make_model().parameters(), bounds="absolute").param_groups[0]["lr"] == 0.1


def test_reset_begins_a_round_like_a_new_optimizer() -> None:
    model, twin = make_model(), make_model()
    old = hyper(model.parameters(), momentum=0.9, delta=random(43, seed=1))
    train(model, old, range(3))
    model.load_state_dict(make_model().state_dict())
    assert old.param_groups[0]["last_hypergrad"] != 0
    old.reset(lr=0.02, delta=random(43, seed=2), local_steps=7)
    assert old.param_groups[0]["last_hypergrad"] == 0
    new = hyper(twin.parameters(), lr=0.02, initial_lr=0.01, momentum=0.9, delta=random(43, seed=2), local_steps=7)
    assert train(model, old, range(5, 9)) == train(twin, new, range(5, 9))
    assert vector(model).equal(vector(twin))
    before = copy.deepcopy(new.state_dict())
    with pytest.raises(ValueError, match="at least 1, got 0"):
        new.reset(local_steps=0)
    with pytest.raises(ValueError, match="not momentum"):
        new.reset(momentum=0.0)
    with pytest.raises(ValueError, match="delta must be finite"):
        new.reset(lr=0.05, delta=torch.full((43,), math.nan))
    assert str(new.state_dict()) == str(before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when", [0, 2])
def test_a_gradient_that_is_not_finite_never_reaches_the_rate(bad: float, when: int) -> None:
    for name in ("hyper", "hyper, cosine, log", "delta"):
        w, v = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
        optimizer = OPTIMIZERS[name]([w, v])
        rates = []
        for k in range(4):
            v.grad = 0.1 * random(3, seed=k)
            w.grad = torch.tensor([0.1, bad if k == when else 0.2, 0.3])
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
        assert all(math.isfinite(rate) and rate > 0 for rate in rates)
        assert rates[when] == rates[max(when - 1, 0)]
        assert v.isfinite().all()
        assert not w.isfinite().all()  # torch's own conduct: the server sees it and drops the update


def test_a_gradient_that_is_not_finite_is_not_remembered() -> None:
    w, v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = HyperSGD([w, v], lr=1.0, bound=100.0, local_steps=1)
    rates = []
    for bad in (math.nan, 1.0, math.inf, 3.0, 1.0):
        w.grad, v.grad = torch.tensor([bad]), torch.tensor([2.0])
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    # 1 · (1, 2) is the first to remember; (3, 2) meets it: 1 + 7; then (1, 2) meets (3, 2): 8 + 7
    assert rates == [1.0, 1.0, 1.0, 8.0, 15.0]
    slow = DeltaSGD([v], eta0=1.0)
    for g in (4.0, math.nan, 12.0):
        v.grad = torch.tensor([g])
        slow.step()
    assert slow.param_groups[0]["lr"] == 0.5  # 12 meets 4: 2 · (1 · 4) / (2 · 8)
    assert slow.param_groups[0]["theta"] == 0.5


def test_amp_skips_a_step_without_a_trace() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = hyper([w], delta=random(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    state = None
    for k in range(4):
        optimizer.zero_grad()
        loss = (w * random(3, seed=k)).sum() * (math.inf if k == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if k == 2:
            assert str(optimizer.state_dict()) == state
        state = str(optimizer.state_dict())
    assert w.isfinite().all()


def test_huge_and_tiny_deltas_leave_the_rate_in_its_bounds() -> None:
    for size in (1e-30, 1e30):
        model = make_model()
        rates = train(model, hyper(model.parameters(), delta=size * random(43)), range(6))
        assert all(0.001 <= rate <= 0.1 + 1e-12 for rate in rates)


# --- the free functions


def test_delta_sgd_rate_by_hand() -> None:
    # γ·moved/(2·turned) = 2·3/(2·4) = .75 against √(1+.1)·1 = 1.0488
    assert delta_sgd_rate(1.0, 1.0, 3.0, 4.0) == (0.75, 0.75)
    assert delta_sgd_rate(1.0, 1.0, 4.0, 3.0) == pytest.approx((math.sqrt(1.1), math.sqrt(1.1)))
    assert delta_sgd_rate(2.0, 0.5, 4.0, 0.0, delta=0.2) == pytest.approx((2 * math.sqrt(1.1), math.sqrt(1.1)))
    for moved, turned in ((0.0, 1.0), (0.0, 0.0), (math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (math.inf, 1.0)):
        assert delta_sgd_rate(0.3, 0.9, moved, turned) == (0.3, 0.9)


def test_polyak_rate_by_hand() -> None:
    assert polyak_rate(2.0, 8.0, lr=1.0) == 0.5  # 2 / (.5·8)
    assert polyak_rate(2.0, 8.0, lr=1.0, c=1.0, floor=1.0) == 0.125
    assert polyak_rate(2.0, 8.0, lr=0.1) == 0.1
    assert polyak_rate(2.0, 0.0, lr=0.1) == 0.1
    assert polyak_rate(2.0, 1e-320, lr=0.1) == 0.1
    for loss, sq_norm in ((-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)):
        assert polyak_rate(loss, sq_norm, lr=0.1) == 0.0


def test_free_functions_work_on_a_stack_of_clients() -> None:
    values = [0.0, 0.5, 2.0, math.nan, math.inf]
    x, y = (t.reshape(-1) for t in torch.meshgrid(*[torch.tensor(values, dtype=torch.float64)] * 2, indexing="ij"))
    lr, theta = delta_sgd_rate(0.3, 0.9, x, y)
    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        assert (lr[i].item(), theta[i].item()) == pytest.approx(delta_sgd_rate(0.3, 0.9, a, b))
    rates = polyak_rate(x, y, lr=0.7)
    assert rates.tolist() == pytest.approx(
        [polyak_rate(a, b, lr=0.7) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    )
    again, _ = delta_sgd_rate(lr, theta, x, y)
    assert again.isfinite().all()


def test_hyper_rate_at_step_zero_is_the_rate_that_was_sent() -> None:
    rule = FedHyperCL(lr=0.01, local_steps=4)
    assert hyper_rate(rule, 0.02, [torch.ones(3)], None, [torch.ones(3)]) == (0.02, 0.0)
    assert math.isnan(hyper_rate(rule, 0.02, [torch.tensor([math.nan])])[1])
    assert hyper_rate(rule, 0.02, [torch.ones(3)], [torch.ones(3)]) == (0.1, 3.0)


def test_delta_sgd_equals_its_pseudocode() -> None:
    model, twin = make_model(torch.float64), make_model(torch.float64)
    optimizer = DeltaSGD(model.parameters(), eta0=0.05)
    eta, theta, x_old, g_old = 0.05, 1.0, None, None
    for k in range(10):
        train(model, optimizer, range(k, k + 1))
        twin.zero_grad()
        gradients(twin, k)
        x, g = vector(twin), grad_vector(twin)
        if x_old is not None:
            smooth = 2.0 * (x - x_old).norm().item() / (2 * (g - g_old).norm().item())
            new = min(smooth, math.sqrt(1 + 0.1 * theta) * eta)
            eta, theta = new, new / eta
        torch.nn.utils.vector_to_parameters(x - eta * g, twin.parameters())
        x_old, g_old = x, g
        assert optimizer.param_groups[0]["lr"] == pytest.approx(eta, rel=1e-7)
    torch.testing.assert_close(vector(model), vector(twin), rtol=1e-7, atol=1e-10)


def test_polyak_needs_a_loss_and_takes_it_either_way() -> None:
    model, twin = make_model(), make_model()
    one, two = PolyakSGD(model.parameters()), PolyakSGD(twin.parameters())

    def closure() -> float:
        two.zero_grad()
        return gradients(twin, 0)

    for _ in range(3):
        one.zero_grad()
        one.step(loss=torch.tensor(gradients(model, 0)))
        assert two.step(closure) > 0
    assert vector(model).equal(vector(twin))
    with pytest.raises(ValueError, match="needs the loss"):
        one.step()
    w = nn.Parameter(torch.zeros(1))
    up_again = PolyakSGD([w], lr=1.0)
    rates = []
    for loss in (0.1, 100.0):
        w.grad = torch.ones(1)
        up_again.step(loss=loss)
        rates.append(up_again.param_groups[0]["lr"])
    assert rates == [0.2, 1.0]


# --- the conduct of a torch optimizer, over the table


@every_optimizer
def test_goes_downhill(name: str) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append(gradients(model, 0))
        take(optimizer, losses[-1])
    assert losses[-1] < 0.8 * losses[0]


@every_optimizer
def test_nothing_happens_without_gradients(name: str) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    weights, state = vector(model), str(optimizer.state_dict())
    take(optimizer, 1.0)
    assert vector(model).equal(weights)
    assert str(optimizer.state_dict()) == state


@every_optimizer
def test_zero_gradients_move_nothing(name: str) -> None:
    if "decay" in name:
        pytest.skip("weight decay moves weights without a gradient")
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    weights = vector(model)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        take(optimizer, 1.0)
    assert vector(model).equal(weights)
    assert 0 < optimizer.param_groups[0]["lr"] < math.inf


@every_optimizer
def test_resuming_equals_never_stopping(name: str) -> None:
    model = make_model()
    extra = {"delta": random(43)} if name.startswith("hyper") else {}
    optimizer = OPTIMIZERS[name](model.parameters(), **extra)
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    rates = train(model, optimizer, range(4, 9))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = make_model()
    fresh.load_state_dict(saved["model"])
    resumed = OPTIMIZERS[name](fresh.parameters())
    resumed.load_state_dict(saved["optimizer"])
    assert train(fresh, resumed, range(4, 9)) == rates
    assert vector(fresh).equal(vector(model))
    assert str(resumed.state_dict()) == str(optimizer.state_dict())


@every_optimizer
def test_a_deep_copy_goes_its_own_way(name: str) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, range(3))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    state = str(optimizer.state_dict())
    rates = train(twin, twin_optimizer, range(3, 6))
    assert str(optimizer.state_dict()) == state
    assert train(model, optimizer, range(3, 6)) == rates


@every_optimizer
def test_groups_and_one_more_group_later(name: str) -> None:
    model, twin = make_model(), make_model()
    one = OPTIMIZERS[name](model.parameters())
    two = OPTIMIZERS[name]([{"params": list(twin[0].parameters())}, {"params": list(twin[2].parameters())}])
    train(model, one, range(5))
    train(twin, two, range(5))
    if name != "hyper, per group":
        assert vector(model).equal(vector(twin))
    assert len({group["lr"] for group in two.param_groups}) == (2 if name == "hyper, per group" else 1)
    more = nn.Parameter(torch.ones(2))
    live = two.param_groups[0]["lr"]
    two.add_param_group({"params": [more]})
    if name != "hyper, per group":
        assert two.param_groups[2]["lr"] == live
    more.grad = torch.ones(2)
    two.zero_grad = lambda: None  # type: ignore[method-assign]
    train(twin, two, range(5, 7))
    assert (more < 1).all()


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    model = make_model(dtype)
    rates = train(model, OPTIMIZERS[name](model.parameters()), range(5))
    assert all(isinstance(rate, float) and 0 < rate < math.inf for rate in rates)
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())


@every_optimizer
def test_layout_of_a_parameter_does_not_matter(name: str) -> None:
    delta = {"delta": random(2 * 3 * 4 * 4)} if name.startswith("hyper") else {}
    results = []
    for layout in ("contiguous", "channels last", "strided"):
        start = random(2, 3, 4, 4, seed=3)
        if layout == "channels last":
            start = start.contiguous(memory_format=torch.channels_last)
        if layout == "strided":
            start = torch.stack([start, start], -1)[..., 0]
        w = nn.Parameter(start)
        optimizer = OPTIMIZERS[name]([w], **delta)
        for k in range(4):
            optimizer.zero_grad()
            loss = (w * random(2, 3, 4, 4, seed=k)).tanh().pow(2).sum()
            loss.backward()
            take(optimizer, loss.item())
        results.append(w.detach().contiguous())
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-6)


@every_optimizer
def test_what_cannot_be_trained_is_refused(name: str) -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    optimizer = OPTIMIZERS[name](embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        take(optimizer, 1.0)
    with pytest.raises(ValueError, match=r"real parameters, got torch\.complex64"):
        OPTIMIZERS[name]([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


W = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: hyper(W, lr=math.nan), "lr must be .* got nan; train this round with"),
    (lambda: hyper(W, lr=-0.1), r"lr must be .* got -0\.1"),
    (lambda: hyper(W, lr=0.0), r"lr must be .* got 0\.0"),
    (lambda: hyper(W, lr=math.inf), "lr must be .* got inf"),
    (lambda: hyper(W, lr="fast"), "lr must be .* got 'fast'"),
    (lambda: hyper(W, initial_lr=0.0), "lr must be .* got 0"),
    (lambda: hyper(W, bound=0.3), r"bound is a factor .* got 0\.3"),
    (lambda: hyper(W, local_steps=0), "local_steps .* got 0"),
    (lambda: (hyper(W, local_steps=1), hyper(W, local_steps=True)), "local_steps .* got True"),
    (lambda: hyper(W, global_term="plus"), "global_term .* got 'plus'"),
    (lambda: hyper(W, epsilon=2.0), r"epsilon .* got 2\.0"),
    (lambda: hyper(W, hypergrad="dot"), "hypergrad .* got 'dot'"),
    (lambda: hyper(W, apply="times"), "apply .* got 'times'"),
    (lambda: hyper(W, bounds="none"), "bounds .* got 'none'"),
    (lambda: hyper(W, hyper_lr=0.0), r"hyper_lr .* got 0\.0"),
    (lambda: hyper(W, momentum=-1.0), r"momentum .* got -1\.0"),
    (lambda: hyper(W, weight_decay=math.nan), "weight_decay .* got nan"),
    (lambda: hyper(W, delta=torch.zeros(6)), r"7 numbers, flat, got shape \(6,\)"),
    (lambda: hyper(W, delta=torch.zeros(7, 1)), r"7 numbers, flat, got shape \(7, 1\)"),
    (lambda: hyper(W, delta=[torch.zeros(3), torch.zeros(4)]), r"\(2, 2\)\], got \[\(3,\), \(4,\)\]"),
    (lambda: hyper(W, delta=[torch.zeros(3)]), r"got \[\(3,\)\]"),
    (lambda: hyper(W, delta=torch.full((7,), math.inf)), "delta must be finite"),
    (lambda: hyper(W, delta=torch.full((7,), 1e300, dtype=torch.float64)), "delta must be finite"),
    (lambda: hyper([{"params": W[:1], "lr": 0.5}, {"params": W[1:]}]), r"lr=0\.5, but the whole model shares 0\.01"),
    (lambda: hyper([{"params": W, "bound": 3.0}]), r"bound=3\.0, but the whole model shares 10\.0"),
    (lambda: hyper([{"params": W, "lr": -1.0}], per_group=True), r"got -1\.0"),
    (lambda: DeltaSGD([{"params": W, "lr": 0.5}]), r"lr=0\.5, but the whole model shares 0\.2"),
    (lambda: DeltaSGD(W, gamma=0.0), r"gamma .* got 0\.0"),
    (lambda: DeltaSGD(W, delta=-1.0), r"delta .* got -1\.0"),
    (lambda: DeltaSGD(W, eta0=math.inf), "eta0 .* got inf"),
    (lambda: PolyakSGD(W, c=0.0), r"c must .* got 0\.0"),
    (lambda: PolyakSGD(W, floor=math.nan), "floor .* got nan"),
    (lambda: PolyakSGD(W, lr=0.0), r"lr must .* got 0\.0"),
    (lambda: hyper([]), "empty parameter list"),
]


@pytest.mark.parametrize(("build", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_bad_settings_are_refused_in_one_line(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)
