"""The slow twin: one client after the other, plain torch, nothing clever. Read it to know what the fast ones do."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedhyper.sim.data.objectives import mean_score
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Reply, Sent, gather, scatter
from fedhyper.sim.local.step import Start, make_optimizer
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
        start = Start(sent.local_lr, len(task.batches), task.epoch_steps, sent.delta, sent.cohort)
        optimizer = make_optimizer(self.local, self._trainable(), start)
        losses, rates = [], []
        for k, batch in enumerate(task.batches):
            index = torch.from_numpy(batch)
            x, y = task.seen(self.task.train_x[index], k), self.task.train_y[index]
            losses.append(float(optimizer.step(partial(self._gradient, optimizer, x, y, sent.weights))))
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

    def _gradient(self, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, origin: Tensor) -> float:
        """The batch's loss; its gradient is left in the parameters. What torch calls a closure."""
        optimizer.zero_grad()
        loss = self.task.objective.loss(self.model(self._inputs(x)), y.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        if self.local.proximal:
            self._pull_towards(origin)
        if self.local.clip_norm:
            nn.utils.clip_grad_norm_(self._trainable(), self.local.clip_norm)
        return loss.item()

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

    def _pull_towards(self, weights: Tensor) -> None:
        """FedProx: g + μ (w − w_t)."""
        for parameter in self._trainable():
            start, weights = weights[: parameter.numel()], weights[parameter.numel() :]
            assert parameter.grad is not None
            pull = parameter.detach() - start.view_as(parameter).to(parameter)
            parameter.grad.add_(pull, alpha=self.local.proximal)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    @torch.no_grad()
    def _scores(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Mean loss and mean score."""
        self.model.eval()
        loss, scores = 0.0, []
        for i in range(0, len(x), _EVAL_BATCH):
            outputs = self.model(self._inputs(x[i : i + _EVAL_BATCH])).float()
            targets = y[i : i + _EVAL_BATCH].to(self.device)
            loss += self.task.objective.summed_loss(outputs, targets)
            scores.append(self.task.objective.score(outputs, targets))
        return loss / len(x), mean_score(torch.cat(scores))

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """Mean loss and mean score on the test set."""
        self._load(sent)
        return self._scores(self.task.test_x, self.task.test_y)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """The mean score on each client's own training examples."""
        self._load(sent)
        own = [torch.from_numpy(partition.client(i)) for i in range(len(partition.sizes))]
        return [self._scores(self.task.train_x[i], self.task.train_y[i])[1] for i in own]

    def close(self) -> None:
        """Give torch its threads back."""
        torch.set_num_threads(self._threads)
