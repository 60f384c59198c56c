"""Models by name, with a seeded start that no global random state, thread count or torch version can change."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhyper.errors import UserError
from fedhyper.sim.keywords import checked_options
from fedhyper.sim.registry import MODELS, register_model
from fedhyper.sim.rng import generator

Shape = tuple[int, ...]
MAX_PARAMETERS = 1_000_000_000  # 4 GB, and a server keeps several copies
_LARGE = 1_024  # options up to this one are not worth counting parameters for


def make_model(name: str, shape: Shape, classes: int, *, seed: int, tokens: bool = False, **options: Any) -> nn.Module:
    """The model ``name`` for inputs of ``shape`` (one example, no batch) and ``classes`` outputs.

    ``tokens`` says that inputs are numbers of characters below ``classes``. ``options`` are the keyword
    arguments of the model's function below, for example ``make_model("resnet18", ..., width=16)``.
    """
    entry = MODELS.get(name)
    given = "characters" if tokens else "images" if len(shape) == 3 else "vectors"
    if given not in entry.reads:
        fitting = ", ".join(other for other in MODELS if given in MODELS.get(other).reads)
        raise UserError(
            f"model {name} reads {' or '.join(entry.reads)}, the task has {given} of {shape}; use {fitting}"
        )
    build = partial(entry.build, tuple(shape), classes, **checked_options(f"model {name}", entry.build, options))
    _check_size(name, build, options)
    # torch's constructors draw from the global generator; its state is put back, and most of their numbers are
    # replaced. What ``initialise`` has no rule for keeps them: so they are seeded, too.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**63)))
        model = build()
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name}: its function must return a torch.nn.Module, got {type(model).__name__}")
    if not entry.pretrained:
        initialise(model, seed)
    return model


def _check_size(name: str, build: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Refuse a model too large for any machine of ours, before torch tries to have the memory."""
    large = {key: value for key, value in options.items() if type(value) is int and value > _LARGE}
    if not large:
        return
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # shapes without memory
        count = parameter_count(build())
    if count > MAX_PARAMETERS:
        asked = ", ".join(f"{key} = {value:,}" for key, value in large.items())
        raise UserError(
            f"model {name} with {asked} has {count:,} parameters, more than {MAX_PARAMETERS:,}; choose fewer"
        )


def parameter_count(model: nn.Module) -> int:
    """How many trainable numbers the model has."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The layers of a model that is Flatten, Linear, (ReLU, Linear)*, none frozen: what can be stacked."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    if len(layers) < 2 or len(layers) % 2 or type(layers[0]) is not nn.Flatten:
        return None
    if not all(type(layer) is nn.ReLU for layer in layers[2::2]):
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    linear = [layer for layer in layers[1::2] if type(layer) is nn.Linear and layer.bias is not None]
    return linear if len(linear) == len(layers) // 2 else None


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Draw every parameter from ``generator(seed, "model", its name)``, with torch's default distributions.

    Linear and convolution: uniform within ±1/√fan_in. LSTM: uniform within ±1/√hidden. Embedding: standard
    normal. Normalisation: weight 1, bias 0. A layer of another kind keeps what its constructor drew.
    """
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            fan_in = _fan_in(module)
            rng = generator(seed, "model", f"{prefix}.{name}")
            shape = tuple(parameter.shape)
            if isinstance(module, nn.GroupNorm | nn.BatchNorm2d | nn.LayerNorm):
                values = np.full(shape, 1.0 if name == "weight" else 0.0, np.float32)
            elif isinstance(module, nn.Embedding):
                values = rng.standard_normal(shape, np.float32)
            elif fan_in is None:
                continue
            else:
                bound = 1 / math.sqrt(fan_in)
                values = (2 * rng.random(shape, np.float32) - 1) * np.float32(bound)
            parameter.copy_(torch.from_numpy(values))


def _fan_in(module: nn.Module) -> int | None:
    if isinstance(module, nn.LSTM):
        return module.hidden_size
    if isinstance(module, nn.Linear | nn.Conv2d):
        return module.weight[0].numel()
    return None


# --- the models: each function's keyword arguments are the options a user may set -----------------------------


@register_model("logistic", reads=("images", "vectors"))
def logistic(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@register_model("mlp", reads=("images", "vectors"))
def mlp(shape: Shape, classes: int, *, hidden: int = 200, depth: int = 1) -> nn.Module:
    """``depth`` hidden layers of ``hidden`` units with ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, classes))


@register_model("cnn", reads=("images",))
def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5×5 convolutions (16 and 32 channels, padding 2), each pooled by 2, then a linear layer.

    28,938 parameters on 1×28×28. Images must be at least 4×4.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise UserError(f"model cnn needs images of at least 4×4, got {height}×{width}; use mlp")
    # The maximum of ReLUs is the ReLU of the maximum, and after the pool there is a quarter of it to compute.
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


@register_model("resnet18", reads=("images",))
def resnet18(shape: Shape, classes: int, *, width: int = 64, norm: str = "group") -> nn.Module:
    """ResNet-18 with the 3×3 stem for small images; ``width`` channels in the first stage, 8 × that in the last.

    ``norm`` is ``group`` (two groups, as is usual in federated learning: nothing but parameters to average)
    or ``batch`` (running statistics are buffers). 11,173,962 parameters on 3×32×32 with ten classes.
    """
    if norm not in ("group", "batch"):
        raise UserError(f"norm = {norm!r} must be group or batch")
    if norm == "group" and width % 2:
        raise UserError(f"width = {width} must be even for norm = group")

    def normalise(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(2, channels)

    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False),
        normalise(width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(4):
        channels = width << stage
        layers += [
            ResidualBlock(before, channels, 1 if stage == 0 else 2, normalise),
            ResidualBlock(channels, channels, 1, normalise),
        ]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class ResidualBlock(nn.Module):
    """relu(x' + norm(conv(relu(norm(conv(x)))))), where x' is x, projected if its shape changes."""

    def __init__(self, before: int, after: int, stride: int, normalise: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            normalise(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            normalise(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), normalise(after))

    def forward(self, x: Tensor) -> Tensor:
        """Images in, images out."""
        return F.relu(self.shortcut(x) + self.body(x))


@register_model("lstm", reads=("characters",))
def lstm(
    shape: Shape, classes: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2, bidirectional: bool = False
) -> nn.Module:
    """LEAF's character model: embedding, stacked LSTM, and a linear layer on the last state."""
    return CharacterLSTM(classes, embedding, hidden, layers, bidirectional)


class CharacterLSTM(nn.Module):
    """Characters ``[n, length]`` to scores of the next one ``[n, classes]``.

    If bidirectional, the linear layer sees the last state of the forward and of the backward pass.
    """

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.directions = 2 if bidirectional else 1
        self.head = nn.Linear(self.directions * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character."""
        _, (last, _) = self.lstm(self.embedding(x))
        scores: Tensor = self.head(torch.cat(list(last[-self.directions :]), dim=1))
        return scores


@register_model("transformer", reads=("characters",))
def transformer(shape: Shape, classes: int, *, width: int = 64, depth: int = 2, heads: int = 4) -> nn.Module:
    """A small character transformer: causal self-attention, normalisation first, no dropout."""
    if width % heads:
        raise UserError(f"width = {width} must be a multiple of heads = {heads}")
    return CharacterTransformer(classes, shape[0], width, depth, heads)


class CharacterTransformer(nn.Module):
    """Characters ``[n, length]`` to scores of the next one ``[n, classes]``, read at the last position."""

    def __init__(self, classes: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character."""
        h = self.embedding(x) + self.position.weight[: x.shape[1]]
        scores: Tensor = self.head(self.norm(self.blocks(h)[:, -1]))
        return scores


class AttentionBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """States ``[n, length, width]`` in and out."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        after: Tensor = x + self.mlp(self.norm2(x))
        return after


def check_batches(model: nn.Module, example: Tensor, sizes: Iterable[int], batch_size: int) -> None:
    """Refuse BatchNorm where a client's last batch is one example that leaves one number a channel: no variance."""
    held = list(map(int, sizes))

    def alone(batch: int) -> list[int]:
        return [size for size in held if size % batch == 1 or batch == 1]

    if not alone(batch_size) or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return
    try:
        copy.deepcopy(model).train()(example[None])
    except ValueError as error:
        fewest = min(alone(batch_size))
        if fewest == 1:  # whatever the batch size
            what, cure = f"client {held.index(1)} holds one example", "partition.min_size = 2"
        else:
            what = f"batch_size = {batch_size} leaves client {held.index(fewest)} a batch of one example"
            cure = f"batch_size = {next(batch for batch in count(batch_size + 1) if not alone(batch))}"
        raise UserError(
            f"{what}, from which this model's BatchNorm has no variance to take; "
            f'use {cure}, or a model without BatchNorm (resnet18: norm = "group")'
        ) from error
