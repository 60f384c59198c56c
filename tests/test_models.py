"""Models: sizes, shapes, seeded starts, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedhyper.errors import UserError
from fedhyper.sim.models import check_batches, linear_layers, make_model, parameter_count
from fedhyper.sim.registry import MODELS

IMAGES, COLOUR, DIGITS, TEXT = (1, 28, 28), (3, 32, 32), (1, 8, 8), (80,)

# Parameters by hand: logistic 784·10+10; mlp 784·200+200+200·10+10; cnn 25·16+16 + 25·16·32+32 + 32·7·7·10+10;
# lstm 80·8 + 4·256·(8+256+2) + 4·256·(256+256+2) + 256·80+80, its second layer reads both directions if it has them;
# ResNet-18 of width w on c channels: stem 9cw+2w, stage one 36w²+8w, a later stage of C channels 32C²+10C, head 80w+10,
# together 2724w² + (9c+230)w + 10, which is 11,173,962 for w = 64, c = 3.
TABLE = [
    ("logistic", IMAGES, {}, 7_850),
    ("logistic", (5,), {}, 60),
    ("mlp", IMAGES, {}, 159_010),
    ("mlp", IMAGES, {"hidden": 10, "depth": 2}, 7_850 + 110 + 110),
    ("cnn", IMAGES, {}, 28_938),
    ("cnn", DIGITS, {}, 13_248 + 32 * 2 * 2 * 10 + 10),
    ("cnn", COLOUR, {}, 13_248 + 2 * 25 * 16 + 32 * 8 * 8 * 10 + 10),
    ("resnet18", COLOUR, {}, 11_173_962),
    ("resnet18", COLOUR, {"norm": "batch", "width": 8}, 2_724 * 64 + 257 * 8 + 10),
    ("resnet18", IMAGES, {"width": 4}, 2_724 * 16 + 239 * 4 + 10),
    ("lstm", TEXT, {}, 640 + 1024 * 266 + 1024 * 514 + 20_560),
    ("lstm", TEXT, {"bidirectional": True, "hidden": 16}, 640 + 2 * 64 * 26 + 2 * 64 * 50 + 2_640),
    ("transformer", TEXT, {}, 115_536),
]


def build(name: str, shape: tuple[int, ...], seed: int = 0, **options: object) -> nn.Module:
    tokens = shape == TEXT
    return make_model(name, shape, 80 if tokens else 10, seed=seed, tokens=tokens, **options)


def inputs(shape: tuple[int, ...], n: int = 3) -> torch.Tensor:
    source = torch.Generator().manual_seed(1)
    if shape == TEXT:
        return torch.randint(0, 80, (n, *shape), generator=source)
    return torch.randn(n, *shape, generator=source)


@pytest.mark.parametrize(("name", "shape", "options", "count"), TABLE)
def test_size_output_and_gradient(name: str, shape: tuple[int, ...], options: dict, count: int) -> None:
    model = build(name, shape, **options)
    assert parameter_count(model) == count
    scores = model(inputs(shape))
    assert scores.shape == (3, 80 if shape == TEXT else 10)
    F.cross_entropy(scores, torch.arange(3)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(torch.isfinite(parameter.grad).all()), key
        assert bool(parameter.grad.any()), key
    # untrained scores are near even: the start is neither dead nor saturated
    even = math.log(scores.shape[1])
    assert abs(F.cross_entropy(scores, torch.arange(3)).item() - even) < 1.5


def test_every_model_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(MODELS)


@pytest.mark.parametrize(("name", "shape", "options"), [row[:3] for row in TABLE if row[3] < 1_000_000])
def test_the_seed_decides_the_start_and_nothing_else(name: str, shape: tuple[int, ...], options: dict) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build(name, shape, seed=1, **options).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        again = build(name, shape, seed=1, **options).state_dict()
    finally:
        torch.set_num_threads(threads)
    other = build(name, shape, seed=2, **options).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "shape"), [("mlp", IMAGES), ("cnn", COLOUR), ("lstm", TEXT), ("transformer", TEXT)])
def test_the_start_has_torchs_own_distribution(name: str, shape: tuple[int, ...]) -> None:
    ours = build(name, shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torchs = build(name, shape)
        for module in torchs.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    for (key, p), q in zip(ours.named_parameters(), torchs.parameters(), strict=True):
        if p.numel() >= 1_000:
            assert p.std().item() == pytest.approx(q.std().item(), rel=0.1), key
            assert p.abs().max().item() == pytest.approx(q.abs().max().item(), rel=0.25), key


def test_parameters_of_one_shape_start_different() -> None:
    model = build("resnet18", COLOUR, width=4)
    weights = [p for p in model.parameters() if p.shape == (4, 4, 3, 3)]
    assert len(weights) >= 2
    assert not torch.equal(weights[0], weights[1])


def test_pooling_before_relu_is_the_textbook_order() -> None:
    model = build("cnn", IMAGES)
    assert isinstance(model, nn.Sequential)
    x = inputs(IMAGES)
    h = F.max_pool2d(F.relu(model[0](x)), 2)
    h = F.max_pool2d(F.relu(model[3](h)), 2)
    assert torch.equal(model(x), model[7](h.flatten(1)))


def test_group_norm_has_no_buffers_and_batch_norm_has() -> None:
    assert not list(build("resnet18", COLOUR, width=4).buffers())
    batch = build("resnet18", COLOUR, width=4, norm="batch")
    names = [name for name, _ in batch.named_buffers()]
    assert len(names) == 3 * 20  # mean, variance and count of 17 layers and 3 shortcuts
    before = batch[1].running_mean.clone()  # type: ignore[index]
    assert torch.equal(before, torch.zeros(4))
    batch(inputs(COLOUR))
    assert not torch.equal(before, batch[1].running_mean)  # type: ignore[index]


def test_both_directions_of_the_lstm_reach_the_scores() -> None:
    model = build("lstm", TEXT, bidirectional=True, hidden=8)
    x = inputs(TEXT, 1)
    for place in (0, 79):
        changed = x.clone()
        changed[0, place] = (changed[0, place] + 1) % 80
        assert not torch.equal(model(x), model(changed))


def test_the_transformer_looks_back_only() -> None:
    model = build("transformer", TEXT)
    seen: list[torch.Tensor] = []
    model.blocks.register_forward_hook(lambda _module, _inputs, output: seen.append(output))  # type: ignore[operator]
    x = inputs(TEXT, 1)
    changed = x.clone()
    changed[0, 40] = (changed[0, 40] + 1) % 80
    model(x), model(changed)
    torch.testing.assert_close(seen[0][:, :40], seen[1][:, :40])
    assert not torch.allclose(seen[0][:, 40:], seen[1][:, 40:])


def test_linear_layers_are_found_only_where_they_are_all() -> None:
    for name, options in (("logistic", {}), ("mlp", {}), ("mlp", {"depth": 3})):
        model = build(name, DIGITS, **options)
        layers = linear_layers(model)
        assert layers is not None
        h = inputs(DIGITS).flatten(1)
        for i, layer in enumerate(layers):
            h = layer(F.relu(h) if i else h)
        assert torch.equal(h, model(inputs(DIGITS)))
    assert linear_layers(build("cnn", DIGITS)) is None
    assert linear_layers(nn.Linear(2, 2)) is None
    assert linear_layers(nn.Sequential(nn.Flatten())) is None
    assert linear_layers(nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))) is None
    assert linear_layers(nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))) is None
    assert linear_layers(nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU())) is None


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("resnet", COLOUR, {}, "did you mean 'resnet18'?"),
        ("vgg", COLOUR, {}, "choose one of logistic"),
        ("mlp", IMAGES, {"hiden": 3}, "did you mean 'hidden'?"),
        ("logistic", IMAGES, {"hidden": 3}, "it has none"),
        ("mlp", IMAGES, {"hidden": 0}, "hidden = 0"),
        ("mlp", IMAGES, {"hidden": 2.5}, "hidden = 2.5"),
        ("mlp", IMAGES, {"hidden": True}, "hidden = True"),
        ("mlp", IMAGES, {"hidden": 10**9}, "hidden = 1000000000 of model mlp must be a whole number, 1 to 16,384"),
        ("mlp", IMAGES, {"depth": 1_000_000}, "depth = 1000000"),
        ("mlp", IMAGES, {"hidden": 10_000, "depth": 12}, "has 1,108,060,010 parameters, more than 1,000,000,000"),
        ("lstm", TEXT, {"hidden": 16_384}, "choose fewer"),
        ("lstm", TEXT, {"bidirectional": 1}, "true or false"),
        ("resnet18", COLOUR, {"norm": "layer"}, "group or batch"),
        ("resnet18", COLOUR, {"norm": 3}, "a word"),
        ("resnet18", COLOUR, {"width": 5}, "must be even"),
        ("transformer", TEXT, {"width": 6}, "multiple of heads"),
        ("cnn", (1, 3, 3), {}, "at least 4×4"),
        ("cnn", (5,), {}, "use logistic, mlp"),
        ("lstm", IMAGES, {}, "reads characters"),
        ("mlp", TEXT, {}, "use lstm, transformer"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(name: str, shape: tuple[int, ...], options: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, shape, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batch_norm_over_one_number_a_channel_is_refused_before_the_first_round() -> None:
    model, one = build("resnet18", (1, 8, 8), width=4, norm="batch"), torch.zeros(1, 8, 8)
    with pytest.raises(UserError, match=r"batch_size = 16 leaves client 1 .* use batch_size = 18, or .* norm = .group"):
        check_batches(model, one, [32, 33, 18], 16)  # 17 leaves one of 18
    with pytest.raises(UserError, match=r"^client 2 holds one example.* use partition.min_size = 2, or"):
        check_batches(model, one, [32, 33, 1], 16)
    with pytest.raises(UserError, match=r"use batch_size = 2, or"):
        check_batches(model, one, [4], 1)
    check_batches(model, one, [32, 34], 16)
    check_batches(build("resnet18", (1, 8, 8), width=4), one, [33], 16)
    check_batches(build("resnet18", (1, 28, 28), width=4, norm="batch"), torch.zeros(1, 28, 28), [33], 16)
