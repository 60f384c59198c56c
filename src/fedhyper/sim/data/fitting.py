"""Whether a model and a task go together, tried on two examples before a run begins: what a plug-in got wrong is named
here, in one line, and not by a traceback from the middle of an engine, or by a run that learns nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedhyper.errors import UserError
from fedhyper.sim.data.objectives import CLASSES, SEQUENCE, YES_NO, Objective, squared_error
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.threads import one_thread

TRIED = 2  # examples: one alone would not show an objective that forgets there are several


def check_fit(model: nn.Module, task: Task) -> None:
    """Refuse a model without anything to train, outputs that the objective cannot take, and a loss or score of another
    form than it must have. What a plug-in's own code raises passes: its author needs the traceback."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has nothing to train: every parameter is frozen; leave requires_grad on for some")
    x, y = task.test_x[:TRIED], task.test_y[:TRIED]
    if x.is_floating_point():
        x = x.to(next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype))
    training = [(module, module.training) for module in model.modules()]
    with torch.no_grad(), one_thread():
        outputs = model.eval()(x)
        for module, was in training:
            module.training = was
        wanted = _wanted(task, y)
        if wanted and not (isinstance(outputs, Tensor) and _fits(outputs, wanted, task.objective)):
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserError(
                f"task {task.name}: for {len(x)} examples of shape {task.shape} the model gives {found}, and the "
                f"objective needs {wanted}; change the model, or the task's classes (now {task.classes})"
            )
        _check_objective(task, outputs, y)


def _wanted(task: Task, y: Tensor) -> tuple[int, ...]:
    """The shape of outputs for these targets; (): an objective of one's own takes what it takes."""
    loss, n = task.objective.loss, len(y)
    if loss is CLASSES.loss:
        return n, task.classes
    if loss is SEQUENCE.loss:
        return (*y.shape, task.classes)
    if loss is YES_NO.loss:
        return n, 1
    return tuple(y.shape) if loss is squared_error else ()


def _fits(outputs: Tensor, wanted: tuple[int, ...], objective: Objective) -> bool:
    """Yes or no, and numbers, are taken in any shape with as many of them."""
    same = objective.loss in (YES_NO.loss, squared_error) and len(outputs) == wanted[0]
    return outputs.numel() == math.prod(wanted) if same else tuple(outputs.shape) == wanted


def _check_objective(task: Task, outputs: Tensor, y: Tensor) -> None:
    for name, given, wanted, due in (
        ("loss", task.objective.loss(outputs, y), (), "one number for them all, a tensor without axes"),
        ("score", task.objective.score(outputs, y), (len(y),), "one number each, a tensor [n]"),
    ):
        if not isinstance(given, Tensor) or tuple(given.shape) != wanted:
            found = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"task {task.name}: the objective's {name} of {len(y)} examples is {found}; it must be {due}"
            )
