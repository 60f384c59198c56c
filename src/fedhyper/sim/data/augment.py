"""Images mirrored and shifted by chance while clients train: more from few photographs.

What happens to a batch follows from seed, round, client and step alone. So it is the same for any number of workers,
in any engine, and after a kill; nothing has to be saved.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedhyper.errors import UserError
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.rng import generator

Kind = Literal["none", "flip", "flip-crop"]
SHIFT = 4  # pixels an image may move in either direction, as is customary for CIFAR-10; what it uncovers is 0


class Augment(NamedTuple):
    """What happens to the batches of one client in one round: mirrored, and with "flip-crop" also shifted."""

    kind: Kind
    seed: int
    round: int
    client: int

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """The images ``[n, c, h, w]`` of a local step, each by a chance of its own."""
        rng = generator(self.seed, "augment", self.round, self.client, step)
        n, h, w = len(x), x.shape[2], x.shape[3]
        shift = SHIFT if self.kind == "flip-crop" else 0
        mirrored = torch.from_numpy(rng.integers(0, 2, n)).bool()
        down, right = torch.from_numpy(rng.integers(0, 2 * shift + 1, (2, n)))
        rows = down[:, None] + torch.arange(h)
        columns = right[:, None] + torch.arange(w)
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        # [n, h, w, c] is how convolutions read: the thread engine's batches are views of that order, and stay so.
        images = pad(x.permute(0, 2, 3, 1), (0, 0, shift, shift, shift, shift))
        places = torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
        return images[tuple(place.to(x.device) for place in places)].permute(0, 3, 1, 2)


def check_augment(kind: Kind, task: Task) -> None:
    """Refuse to mirror what is no image."""
    if kind != "none" and len(task.shape) != 3:
        raise UserError(
            f'augment = "{kind}" is for images, and an input of task {task.name} has shape {task.shape}; use "none"'
        )
