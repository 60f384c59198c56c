"""The built-in tasks: from files to training and test tensors."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedhyper.errors import DataError, UserError, install
from fedhyper.sim.data.files import Bytes, data_dir, load_files
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.rng import generator

Indices = npt.NDArray[np.int64]

# Mean and standard deviation of each channel of the training images, on the scale 0 to 1.
NORMALISE = {
    "mnist": ((0.1307,), (0.3081,)),
    "fmnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
# 79 characters and slot 0 for any other: 80 classes as in LEAF, whose own table lacks the $ of tiny-shakespeare.
CHARACTERS = "\n !\"$&'(),-.0123456789:;?[]ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VOCABULARY = 1 + len(CHARACTERS)
SEQUENCE = 80
TRAIN_STRIDE, TEST_STRIDE = 20, 40
TRAIN_SHARE = 0.8


def digits() -> Task:
    """scikit-learn's embedded handwritten digits: 1×8×8, values 0 to 1, 1437 for training and 360 for the test.

    The split is fixed: of the images in order of class, shuffled within it, every fifth goes to the test.
    """
    table = _digits_table()
    images = torch.from_numpy(table[:, :64].astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    labels = table[:, 64]
    order = generator(0, "digits").permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    test = np.sort(by_class[::5])
    train = np.setdiff1d(order, test)
    y = torch.from_numpy(labels)
    return Task("digits", images[train], y[train], images[test], y[test], classes=10)


def _digits_table() -> Indices:
    """1797 rows of 64 pixels (0 to 16) and a label."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"task digits needs scikit-learn; {install('sim')}")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():  # importing sklearn.datasets takes seconds, its file milliseconds; a test compares them
        with gzip.open(file, "rt") as lines:
            return np.array([line.split(",") for line in lines], np.float64).astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.int64)


def mnist() -> Task:
    """Handwritten digits, 1×28×28, 60,000 and 10,000."""
    return _grey_images("mnist")


def fmnist() -> Task:
    """Fashion-MNIST: pieces of clothing, 1×28×28, 60,000 and 10,000."""
    return _grey_images("fmnist")


def cifar10() -> Task:
    """CIFAR-10: photographs of ten kinds of things, 3×32×32, 50,000 and 10,000."""
    *train, (test_x, test_y) = load_files("cifar10")
    return _image_task("cifar10", [x for x, _ in train], [y for _, y in train], test_x, test_y)


def _grey_images(name: str) -> Task:
    train_x, train_y, test_x, test_y = load_files(name)
    return _image_task(name, [train_x[:, None]], [train_y], test_x[:, None], test_y)


def _image_task(name: str, train_x: Sequence[Bytes], train_y: Sequence[Bytes], test_x: Bytes, test_y: Bytes) -> Task:
    return Task(
        name,
        _normalised(name, train_x),
        torch.from_numpy(np.concatenate(train_y).astype(np.int64)),
        _normalised(name, [test_x]),
        torch.from_numpy(test_y.astype(np.int64)),
        classes=10,
    )


def _normalised(name: str, parts: Sequence[Bytes]) -> Tensor:
    """(x / 255 − mean) / std, per channel, in float32, of all parts one after the other."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in NORMALISE[name])
    scale, shift = 1 / (255 * std), mean / std
    out = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.float32)
    start = 0
    for part in parts:
        for i in range(0, len(part), 64):  # 64 images stay in the cache between the two passes
            images = part[i : i + 64]
            block = out[start : start + len(images)]
            np.multiply(images, scale, out=block)
            block -= shift
            start += len(images)
    return torch.from_numpy(out)


def shakespeare() -> Task:
    """Next character from the 80 before it (LEAF's task), one natural client a speaking role.

    Inputs are int64 ``[n, 80]``, the target is the single character that follows. The first 80 % of a role's
    text gives its training sequences, the rest its test sequences, so no character is in both. A new
    sequence starts every 20 characters in training and every 40 in the test (LEAF: every one, 16 × as many).
    Roles whose last 20 % is shorter than one sequence and its target are left out.
    """
    (roles,) = load_files("shakespeare")
    train, test, groups, start = [], [], [], 0
    for said in roles.values():
        numbers = encode(said)
        cut = int(TRAIN_SHARE * len(numbers))
        if len(numbers) - cut <= SEQUENCE:
            continue
        train.append(_windows(numbers[:cut], TRAIN_STRIDE))
        test.append(_windows(numbers[cut:], TEST_STRIDE))
        groups.append(np.arange(start, start + len(train[-1])))
        start += len(train[-1])
    if not groups:
        raise DataError(
            f"{data_dir() / 'shakespeare' / 'input.txt'} has no role with {5 * SEQUENCE + 1} characters; "
            "run `fedhyper data fetch shakespeare` for the published text"
        )
    train_all, test_all = (torch.from_numpy(np.concatenate(part)) for part in (train, test))
    return Task(
        "shakespeare",
        train_all[:, :-1].contiguous(),
        train_all[:, -1].contiguous(),
        test_all[:, :-1].contiguous(),
        test_all[:, -1].contiguous(),
        classes=VOCABULARY,
        groups=tuple(groups),
    )


def encode(text: str) -> Indices:
    """The number of each character: its place in ``CHARACTERS`` counted from 1, 0 if it is not there."""
    table = np.zeros(128, np.int64)  # every character of ours is ASCII, and 127 is none of them
    table[[ord(c) for c in CHARACTERS]] = np.arange(1, VOCABULARY)
    numbers: Indices = table[np.minimum(np.frombuffer(text.encode("utf-32-le"), "<u4"), 127)]
    return numbers


def _windows(numbers: Indices, stride: int) -> Indices:
    return np.lib.stride_tricks.sliding_window_view(numbers, SEQUENCE + 1)[::stride].astype(np.int64)
