"""Everything that has a name in a config, and how to give one to something of yours: five registries, one way.

    register_task        what to learn: a function that returns a ``Task``
    register_model       what learns it: a function that returns a ``torch.nn.Module``
    register_method      how the rates are set: a function that returns a ``Method``
    register_local       what a client runs: a fast and a slow version of one optimizer
    register_partition   who holds what: a function that returns the owner of each example

The built-in ones are registered by the same calls. This file imports nothing heavy, so that a config can be checked
without waiting for torch. docs/extend.md has an example of each.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedhyper.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from fedhyper.sim.data.tasks import Task
    from fedhyper.sim.local.step import LocalStep, SlowTwin
    from fedhyper.sim.methods import Given, Method

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


class Registry(Generic[T]):
    """Names of one kind of thing. ``built_in`` is the module that registers ours; it is imported when first needed."""

    def __init__(self, kind: str, built_in: str) -> None:
        self.kind = kind
        self._built_in: str | None = built_in
        self._loading = threading.RLock()
        self._entries: dict[str, tuple[T, str]] = {}

    def register(self, name: str, entry: T, *, origin: str) -> None:
        """Make ``entry`` known. ``origin`` is the module it comes from: only that one may replace it later."""
        if not origin.startswith("fedhyper."):
            self._load()  # ours first, so that a name that is taken is refused to the newcomer
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"{self.kind} {name!r}: a name is made of letters, digits and - _ . +, at most 100 of them")
        if name in self._entries and self._entries[name][1] != origin:
            whose = (
                "built in" if self._entries[name][1].startswith("fedhyper.") else f"that of {self._entries[name][1]}"
            )
            raise UserError(f"{self.kind} {name!r} is {whose}; register yours under another name")
        self._entries[name] = entry, origin

    def get(self, name: str) -> T:
        """The entry of this name; an unknown one is refused with the nearest known one."""
        self._load()
        if name not in self._entries:
            hint = f"{did_you_mean(name, self._entries)} (if a module of yours registers it: --import MODULE)"
            raise UserError(f"there is no {self.kind} {name!r}; {hint}")
        return self._entries[name][0]

    def names(self) -> list[str]:
        """Every name, the built-in ones first."""
        self._load()
        return list(self._entries)

    def remove(self, name: str) -> None:
        """Forget a name of yours."""
        self._entries.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def _load(self) -> None:
        with self._loading:  # the engine's threads ask at once, and none may see half of the names
            if self._built_in is not None:
                module, self._built_in = self._built_in, None
                importlib.import_module(module)


@dataclass(frozen=True)
class TaskEntry:
    """How to load a task, the model it is trained with unless the config says otherwise, and whether its data have
    clients of their own."""

    load: Callable[[], Task]
    model: str
    natural: bool


@dataclass(frozen=True)
class ModelEntry:
    """How to build a model for a shape and a number of outputs, what it can read, and whether it brings its weights."""

    build: Callable[..., nn.Module]
    reads: tuple[str, ...]
    pretrained: bool


@dataclass(frozen=True)
class MethodEntry:
    """One line on what a method does, and how to build it from rates and options."""

    summary: str
    make: Callable[[Given], Method]


@dataclass(frozen=True)
class LocalRule:
    """A client optimizer twice: ``fast`` on flat vectors, ``slow`` as a torch optimizer. ``needs_loss``: its rate
    depends on the batch's loss, which the stacked engine computes only when asked."""

    fast: type[LocalStep]
    slow: SlowTwin
    needs_loss: bool


@dataclass(frozen=True)
class PartitionEntry:
    """How to split; ``labelled``: whether counting a client's labels says something about its data."""

    split: Callable[..., Any]
    labelled: bool


TASKS: Registry[TaskEntry] = Registry("task", "fedhyper.sim.data.catalogue")
MODELS: Registry[ModelEntry] = Registry("model", "fedhyper.sim.models")
METHODS: Registry[MethodEntry] = Registry("method", "fedhyper.sim.methods")
LOCALS: Registry[LocalRule] = Registry("client optimizer", "fedhyper.sim.local.built_in")
PARTITIONS: Registry[PartitionEntry] = Registry("partition kind", "fedhyper.sim.data.catalogue")
READS = ("images", "vectors", "characters")  # what a task's inputs can be


def register_task(name: str, *, model: str, natural: bool = False) -> Callable[[F], F]:
    """Decorate a function without arguments that returns a ``Task``.

    name     what configs call it: ``task = "name"``
    model    the name of the model it is trained with unless the config says otherwise
    natural  whether its data have clients of their own (``groups``)
    """

    def register(load: F) -> F:
        TASKS.register(name, TaskEntry(load, model, natural), origin=load.__module__)
        return load

    return register


def register_model(name: str, *, reads: tuple[str, ...] = READS, pretrained: bool = False) -> Callable[[F], F]:
    """Decorate ``build(shape, outputs, *, option=default, ...)``, which returns a module.

    ``shape`` is that of one input; ``outputs`` is how many numbers are due for it. Keyword arguments are what
    ``[model_options]`` may set.

    name        what configs call it: ``model = "name"``
    reads       what it takes, some of: images (c, h, w), vectors (any other shape), characters
    pretrained  whether its weights are what ``build`` made them; otherwise they are drawn anew from the config's seed.
                What ``build`` itself draws with torch (a new head, adapters) comes from that seed, too
    """
    if not reads or not set(reads) <= set(READS):
        raise UserError(f"model {name!r}: reads = {reads!r} must be some of {', '.join(READS)}")

    def register(build: F) -> F:
        MODELS.register(name, ModelEntry(build, tuple(reads), pretrained), origin=build.__module__)
        return build

    return register


def register_method(name: str, summary: str) -> Callable[[F], F]:
    """Decorate ``make(given)``, which returns a ``Method``; what it builds with ``given.make`` gives its options.

    name     what configs call it: ``method = "name"``
    summary  one line for ``fedhyper methods``
    """

    def register(make: F) -> F:
        METHODS.register(name, MethodEntry(summary, make), origin=make.__module__)
        return make

    return register


def register_local(name: str, *, fast: type[LocalStep], slow: SlowTwin, needs_loss: bool = False) -> None:
    """Register a client optimizer: ``Local(kind=name)`` of a method then runs it.

    name        what methods call it
    fast        a ``LocalStep``, which trains on flat vectors
    slow        ``slow(parameters, start)`` returns a ``torch.optim.Optimizer`` whose ``param_groups[0]["lr"]`` after a
                step is the rate it took
    needs_loss  whether its rate depends on the batch's loss, which the stacked engine computes only when asked

    ``engine = "sequential"`` runs the slow one, all other engines the fast one; the two should agree to rounding.
    """
    origins = [getattr(twin, "__module__", "") for twin in (slow, fast)]
    theirs = [origin for origin in origins if not origin.startswith(("fedhyper.", "torch."))]
    LOCALS.register(name, LocalRule(fast, slow, needs_loss), origin=theirs[0] if theirs else origins[0])


def register_partition(name: str, *, labelled: bool = True) -> Callable[[F], F]:
    """Decorate ``split(given, *, option=default, ...)``, which returns the owner of each example, ``[n]`` integers.

    ``given`` has ``rng``, ``labels``, ``clients`` and ``groups``. Keyword arguments are what ``[partition]`` may set.
    Clients below ``min_size`` are filled up afterwards.

    name      what configs call it: ``partition.kind = "name"``
    labelled  whether counting a client's labels says something about its data
    """

    def register(split: F) -> F:
        PARTITIONS.register(name, PartitionEntry(split, labelled), origin=split.__module__)
        return split

    return register
