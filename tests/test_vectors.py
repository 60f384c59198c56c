"""The flat model is the model, and the fast inner product is the slow one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedhyper import arrays
from fedhyper.client.vectors import FlatModel, channels_last, cosine, inner, inners, is_dense


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Tied(nn.Module):
    """An embedding used again as the output layer: one Parameter object, two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))


def seeded(build: object) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()  # type: ignore[operator]


def conv_net(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.Flatten()
    )


MODELS = {
    "linear": (lambda: nn.Linear(3, 2), random(5, 3)),
    "conv, one channel": (lambda: conv_net(1), random(2, 1, 6, 6)),
    "conv, three channels": (lambda: conv_net(3), random(2, 3, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), random(2, 4, 6, 6)),
    "lstm": (lambda: nn.LSTM(3, 4, 2), random(5, 2, 3)),
    "tied": (Tied, torch.arange(6).view(2, 3)),
    "float64": (lambda: nn.Linear(3, 2).double(), random(5, 3).double()),
    "scalar": (lambda: nn.PReLU(1), random(5)),
}


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).pow(2).sum()


@pytest.fixture(params=MODELS, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    build, x = MODELS[request.param]
    return seeded(build), x


@pytest.mark.parametrize("nhwc", [False, True])
def test_flat_model_trains_like_the_model_it_was_made_of(case: tuple[nn.Module, Tensor], nhwc: bool) -> None:
    model, x = case
    twin = copy.deepcopy(model)
    flat = FlatModel(model, channels_last=nhwc)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.001)
    x_in = channels_last(x) if nhwc and x.dim() == 4 else x
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(twin, x).backward()
        optimizer.step()
        flat.zero_grad()
        loss_of(model, x_in).backward()
        for parameter, piece in zip(flat.parameters, flat.pieces, strict=True):
            assert parameter.grad is not None
            assert parameter.grad.untyped_storage().data_ptr() == flat.grad.untyped_storage().data_ptr()
            assert parameter.data_ptr() == flat.weights[piece.start :].data_ptr()
        flat.weights.sub_(flat.grad, alpha=0.001)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_channels_last_weights_have_true_nhwc_strides_even_with_one_channel() -> None:
    model = conv_net(1)
    FlatModel(model, channels_last=True)
    assert model[0].weight.stride() == (9, 1, 3, 1)
    assert model[3].weight.stride() == (4, 1, 4, 4)
    assert channels_last(random(2, 1, 6, 5)).stride() == (30, 1, 5, 1)
    assert channels_last(random(2, 3, 6, 5)).stride() == (90, 1, 15, 3)
    assert channels_last(random(2, 1, 6, 5)[:, :, ::2]).equal(random(2, 1, 6, 5)[:, :, ::2])


@pytest.mark.parametrize("nhwc", [False, True])
def test_export_and_load_use_the_standard_layout(case: tuple[nn.Module, Tensor], nhwc: bool) -> None:
    model, _ = case
    want = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = FlatModel(model, channels_last=nhwc)
    got = flat.export()
    assert list(got) == list(want)
    assert all(got[name].equal(want[name]) and got[name].is_contiguous() for name in want)
    doubled = {name: 2 * tensor for name, tensor in got.items()}
    flat.load(doubled)
    assert all(p.equal(doubled[name]) for name, p in model.named_parameters())
    assert all(t.equal(want[name]) for name, t in flat.export(flat.flatten(want)).items())


def test_swap_keeps_the_previous_gradient_without_a_copy() -> None:
    model, x = nn.Linear(3, 2), random(4, 3)
    flat = FlatModel(model)
    first, second = flat.grad, flat.before
    loss_of(model, x).backward()
    kept = flat.grad.clone()
    flat.swap()
    assert flat.before is first
    assert flat.grad is second
    assert flat.before.equal(kept)
    assert not flat.grad.any()
    loss_of(model, 2 * x).backward()
    assert flat.before.equal(kept)
    assert flat.grad.any()
    assert not flat.grad.equal(kept)
    flat.swap()
    assert flat.grad is first
    assert not flat.grad.any()


def test_zero_grad_binds_gradients_that_were_taken_away() -> None:
    model, x = nn.Linear(3, 2), random(4, 3)
    flat = FlatModel(model)
    model.zero_grad(set_to_none=True)
    flat.zero_grad()
    loss_of(model, x).backward()
    assert flat.grad.any()


def test_buffers_are_kept_apart_and_stay_views() -> None:
    model = conv_net(3)
    model.register_buffer("constant", torch.ones(2), persistent=False)
    flat = FlatModel(model)
    assert [piece.name for piece in flat.buffer_pieces] == ["1.running_mean", "1.running_var"]
    assert list(flat.counters) == ["1.num_batches_tracked"]
    assert flat.weights.numel() == sum(p.numel() for p in model.parameters())
    model(random(2, 3, 6, 6))
    assert flat.buffers[:4].equal(model[1].running_mean)
    assert flat.buffers[:4].any()
    assert flat.counters["1.num_batches_tracked"] == 1
    flat.buffers.zero_()
    assert not model[1].running_var.any()
    assert FlatModel(nn.Linear(2, 2)).buffers.numel() == 0


def test_frozen_parameters_stay_out() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    flat = FlatModel(model)
    assert [piece.name for piece in flat.pieces] == ["1.weight", "1.bias"]
    loss_of(model, random(4, 3)).backward()
    flat.weights.zero_()
    assert model[0].weight.any()
    assert not model[1].weight.any()


def test_a_tied_parameter_is_held_once_and_shared_memory_is_refused() -> None:
    model = Tied()
    assert FlatModel(model).weights.numel() == 28
    assert model.out.weight is model.embed.weight
    loose = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    loose[1].weight.data = loose[0].weight.data
    with pytest.raises(ValueError, match=r"1\.weight and 0\.weight share memory"):
        FlatModel(loose)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.ReLU(), "no trainable parameter"),
        (lambda: nn.LazyLinear(3), "no shape yet"),
        (lambda: nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()), "one dtype and device"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "only real floating-point"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_models_that_cannot_be_flat_are_refused(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlatModel(build())  # type: ignore[operator]


def test_load_refuses_what_does_not_fit_and_changes_nothing() -> None:
    flat = FlatModel(nn.Linear(3, 2))
    before = flat.weights.clone()
    named = flat.export()
    with pytest.raises(ValueError, match="missing or unknown: bias"):
        flat.load({"weight": named["weight"]})
    with pytest.raises(ValueError, match=r"bias has shape \(2,\), got \(1,\)"):
        flat.load({"weight": named["weight"] + 1, "bias": torch.zeros(1)})
    with pytest.raises(ValueError, match="has 8 numbers"):
        flat.named(torch.zeros(9))
    with pytest.raises(ValueError, match="is contiguous"):
        flat.named(torch.zeros(8, 2)[:, 0])
    row = torch.arange(16.0).view(2, 8)[1]  # a row of a stack of vectors
    assert flat.export(row)["bias"].equal(row[6:])
    assert flat.weights.equal(before)


SIZES = [0, 1, 15, 7_168, 7_169, 63_999, 64_000, 64_001, 100_003]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_inner_equals_its_slow_twin(size: int, dtype: torch.dtype) -> None:
    a, b = random(size, seed=1, dtype=dtype), random(size, seed=2, dtype=dtype)
    scale = float(arrays.inner(a.abs(), b.abs())) + 1e-300
    assert abs(inner(a, b) - float(arrays.inner(a, b))) <= (2e-7 if dtype == torch.float32 else 1e-13) * scale


@pytest.mark.parametrize("magnitude", [1e-30, 1e-21, 1e-19, 1e-15, 1e15, 1e19, 1e30])
def test_inner_holds_where_float32_products_do_not(magnitude: float) -> None:
    a, b = random(50_000, seed=1) * magnitude, random(50_000, seed=2) * magnitude
    assert inner(a, a) == pytest.approx(float(arrays.inner(a, a)), rel=1e-6)
    assert abs(inner(a, b) - float(arrays.inner(a, b))) <= 1e-7 * float(arrays.inner(a.abs(), b.abs()))


def test_inner_is_not_a_number_when_its_input_is_not() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        a = torch.ones(70_000)
        a[69_999] = bad
        assert not math.isfinite(inner(a, torch.ones(70_000)))
        assert math.isnan(cosine(a, torch.ones(70_000)))


def test_inner_has_the_same_bits_for_any_thread_count() -> None:
    threads = torch.get_num_threads()
    try:
        results = set()
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            for size in (28_938, 65_536, 1_000_003):
                a, b = random(size, seed=1), random(size, seed=2)
                results.add((size, inner(a, b), inner(a.double(), b.double()), inner(a * 1e-30, b)))
    finally:
        torch.set_num_threads(threads)
    assert len(results) == 3


def test_inner_of_pieces_pairs_elements_whatever_their_strides() -> None:
    a, b = random(4, 3, 5, 5, seed=1), random(4, 3, 5, 5, seed=2)
    want = float(arrays.inner(a.reshape(-1), b.reshape(-1)))
    last = torch.channels_last
    for x in (a, a.contiguous(memory_format=last), a.transpose(0, 3).contiguous().transpose(0, 3)):
        for y in (b, b.contiguous(memory_format=last), torch.stack([b, b], -1)[..., 0]):
            assert inner(x, y) == pytest.approx(want, rel=1e-5)
            assert inner([x, a], [y, b]) == pytest.approx(2 * want, rel=1e-5)
    sparse = torch.stack([a, b], -1)
    assert inner(sparse[..., 0], sparse[..., 1]) == pytest.approx(want, rel=1e-5)
    assert not is_dense(sparse[..., 0])
    assert not is_dense(a[:1].expand(2, 3, 5, 5))


def test_inner_refuses_vectors_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(1,\)"):
        inner(torch.ones(3), torch.ones(1))
    with pytest.raises(ValueError, match="1 and 2 pieces"):
        inner([torch.ones(3)], [torch.ones(3), torch.ones(1)])
    with pytest.raises(ValueError, match="same form"):
        inner(torch.ones(3), [torch.ones(3)])


def test_several_inner_products_in_one_pass_have_the_bits_of_one_by_one() -> None:
    a, b, c = ([random(70_001, seed=k), random(9_000, seed=k), random(3, 4, seed=k)] for k in range(3))
    tiny = [1e-30 * x for x in b]
    assert inners(a, b, c, tiny) == [inner(a, b), inner(a, c), inner(a, tiny)]
    assert inners(a, b, [x.double() for x in c])[1] == pytest.approx(inner(a, c), rel=1e-5)


def test_inner_takes_parameters_and_leaves_no_graph() -> None:
    for size in (3, 70_001):
        w = nn.Parameter(random(size))
        assert inner(w, w) == inner(w.detach(), w.detach())
        assert w.grad_fn is None


def test_cosine() -> None:
    a = torch.tensor([3.0, 4.0])
    assert cosine(a, a) == 1.0
    assert cosine(a, -2 * a) == -1.0
    assert cosine(a, torch.tensor([4.0, -3.0])) == 0.0
    assert cosine(a, torch.zeros(2)) == 0.0
    assert cosine(a * 1e-30, a * 1e-30) == pytest.approx(1.0)
