"""The slow twin: one client after the other, plain torch, nothing clever. Read it to know what the fast ones do."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedhyper.client import DeltaSGD, HyperSGD, PolyakSGD
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Reply, Sent, gather, scatter
from fedhyper.sim.methods import Local

_EVAL_BATCH = 500


class SequentialEngine:
    """Trains with ``torch.optim`` and ``fedhyper.client`` on a model of its own."""

    def __init__(self, *, model: nn.Module, task: Task, local: Local, device: str, dtype: torch.dtype) -> None:
        self.task, self.local, self.device, self.dtype = task, local, torch.device(device), dtype
        self.model = copy.deepcopy(model).to(self.device, dtype)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a sum split among threads has other bits

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """One client after the other."""
        for task in tasks:
            yield self._train_client(task, sent)

    def _train_client(self, task: ClientTask, sent: Sent) -> Reply:
        self._load(sent)
        self.model.train()
        optimizer = self._optimizer(sent, task)
        losses, rates = [], []
        for batch in task.batches:
            index = torch.from_numpy(batch)
            optimizer.zero_grad()
            loss = cross_entropy(self.model(self._inputs(self.task.train_x[index])), self._targets(index))
            loss.backward()  # type: ignore[no-untyped-call]
            if self.local.proximal:
                self._pull_towards(sent.weights)
            losses.append(loss.item())
            if isinstance(optimizer, _ReleasedSGD):  # its rate of this step; the others' is known after it
                rates.append(optimizer.lr)
            optimizer.step(loss=losses[-1]) if isinstance(optimizer, PolyakSGD) else optimizer.step()
            if not isinstance(optimizer, _ReleasedSGD):
                rates.append(float(optimizer.param_groups[0]["lr"]))
        return Reply.of(
            task,
            rates,
            delta=sent.weights - self._vector(),
            buffers=gather(self._buffers(floating=True), torch.float32),
            counters=gather(self._buffers(floating=False), torch.int64),
            first_loss=losses[0],
            mean_loss=sum(losses) / len(losses),
        )

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _buffers(self, *, floating: bool) -> list[Tensor]:
        """The buffers that are saved with the model: statistics, or counters."""
        parameters = dict(self.model.named_parameters())
        saved = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        return [value for value in saved.values() if value.is_floating_point() == floating]

    def _vector(self) -> Tensor:
        return parameters_to_vector(self._trainable()).detach().float().cpu()

    def _load(self, sent: Sent) -> None:
        vector = sent.weights.to(self.device, self.dtype, copy=True)  # parameters become views of it
        vector_to_parameters(vector, self._trainable())
        scatter(sent.buffers, self._buffers(floating=True))
        scatter(sent.counters, self._buffers(floating=False))

    def _optimizer(self, sent: Sent, task: ClientTask) -> torch.optim.Optimizer:
        parameters, settings = self._trainable(), dict(self.local.settings)
        if self.local.kind == "hyper":
            settings["initial_lr"] = settings.pop("lr")
            return HyperSGD(parameters, sent.local_lr, **settings, local_steps=len(task.batches), delta=sent.delta)
        if self.local.kind == "released":
            return _ReleasedSGD(parameters, sent, task.epoch_steps)
        if self.local.kind == "delta":
            return DeltaSGD(parameters, **settings)
        if self.local.kind == "polyak":
            return PolyakSGD(parameters, lr=sent.local_lr, **settings)
        if self.local.kind == "adam":
            return torch.optim.Adam(parameters, lr=sent.local_lr)
        return torch.optim.SGD(parameters, lr=sent.local_lr)

    def _pull_towards(self, weights: Tensor) -> None:
        """FedProx: g + μ (w − w_t)."""
        for parameter in self._trainable():
            start, weights = weights[: parameter.numel()], weights[parameter.numel() :]
            assert parameter.grad is not None
            pull = parameter.detach() - start.view_as(parameter).to(parameter)
            parameter.grad.add_(pull, alpha=self.local.proximal)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    def _targets(self, index: Tensor) -> Tensor:
        return self.task.train_y[index].to(self.device)

    @torch.no_grad()
    def _correct(self, x: Tensor, y: Tensor) -> tuple[float, int]:
        """Summed loss and number of right answers."""
        self.model.eval()
        loss, correct = 0.0, 0
        for i in range(0, len(x), _EVAL_BATCH):
            outputs = self.model(self._inputs(x[i : i + _EVAL_BATCH])).float()
            targets = y[i : i + _EVAL_BATCH].to(self.device)
            loss += cross_entropy(outputs, targets, reduction="sum").item()
            correct += int((outputs.argmax(1) == targets).sum())
        return loss, correct

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """Mean loss and accuracy on the test set."""
        self._load(sent)
        loss, correct = self._correct(self.task.test_x, self.task.test_y)
        return loss / len(self.task.test_y), correct / len(self.task.test_y)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """Accuracy on each client's own training examples."""
        self._load(sent)
        own = [torch.from_numpy(partition.client(i)) for i in range(len(partition.sizes))]
        return [self._correct(self.task.train_x[i], self.task.train_y[i])[1] / len(i) for i in own]

    def close(self) -> None:
        """Give torch its threads back."""
        torch.set_num_threads(self._threads)


class _ReleasedSGD(torch.optim.SGD):
    """The authors' released client rule in their terms: differences of parameters, after − before."""

    def __init__(self, parameters: list[nn.Parameter], sent: Sent, epoch_steps: int) -> None:
        super().__init__(parameters, lr=sent.local_lr)
        self.initial, self.ratio, self.taken = sent.local_lr, 1.0, 0
        self.epoch_steps, self.cohort = epoch_steps, sent.cohort
        vector = parameters_to_vector(parameters).detach()
        self.last_round = torch.zeros_like(vector) if sent.delta is None else -sent.delta.to(vector)
        self.last = self.last_round

    @property
    def lr(self) -> float:
        """The rate of the next step."""
        return self.initial * self.ratio

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of SGD, then the rate of the one after it."""
        parameters = self.param_groups[0]["params"]
        before = parameters_to_vector(parameters).detach()
        self.param_groups[0]["lr"] = self.lr
        super().step()
        first_of_epoch = self.taken % self.epoch_steps == 0
        self.taken += 1
        if first_of_epoch:
            return
        moved = parameters_to_vector(parameters).detach() - before
        factor = 1 + float(moved.double() @ self.last.double())
        factor += 0.1 * float(moved.double() @ self.last_round.double()) / self.cohort
        if math.isfinite(factor):
            self.ratio = min(max(self.ratio * min(1.1, factor), 0.1), 10.0)
        self.last = moved
