"""Sentences and whether they are positive: SST-2 from disk, and a made-up stand-in that needs nothing."""

import hashlib
import os
import zlib
from functools import cache

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fedhyper.errors import DataError
from fedhyper.sim.data.files import data_dir
from fedhyper.sim.data.tasks import Task

LENGTH = 32  # tokens; longer sentences are cut
PAD = 0
WORDS = 1000  # of the stand-in's vocabulary


@cache
def sst2():
    """SST-2 as token numbers, ``LENGTH`` a sentence: 6,920 to train on, and dev's 872 to test, as GLUE has it."""
    from finetune.model import tokenizer, weights_dir

    directory = data_dir() / "sst2"
    files = [directory / "train.tsv", directory / "dev.tsv"]
    tensors = cached(directory, [*files, weights_dir() / "tokenizer.json"], lambda: tokens(files, tokenizer()))
    return Task("sst2", *(tensors[name].long() for name in ("train_x", "train_y", "test_x", "test_y")), classes=2)


def tokens(files, tokenizer):
    """The tensors of a task: 16-bit numbers, which is what a vocabulary of 30,522 needs."""
    tensors = {}
    for name, file in zip(("train", "test"), files, strict=True):
        sentences, labels = read(file)
        encoded = tokenizer(sentences, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        tensors[f"{name}_x"] = encoded["input_ids"].to(torch.int16)
        tensors[f"{name}_y"] = torch.tensor(labels, dtype=torch.int16)
    return tensors


def read(file):
    """The sentences and the labels of a file with one sentence, a tab, and 0 or 1 a line."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); README.md says where SST-2 comes from") from error
    pairs = [line.rsplit("\t", 1) for line in lines if line.strip()]
    wrong = [number for number, pair in enumerate(pairs, 1) if len(pair) != 2 or pair[1].strip() not in ("0", "1")]
    if wrong or not pairs:
        raise DataError(f"{file}, line {wrong[0] if wrong else 1}: expected a sentence, a tab, and 0 or 1")
    return [sentence for sentence, _ in pairs], [int(label) for _, label in pairs]


def cached(directory, sources, make):
    """``make()``, kept beside the data under a name that changes with the sources and the length."""
    digest = hashlib.sha256(str(LENGTH).encode())
    for source in sources:
        digest.update(source.read_bytes() if source.is_file() else b"")
    file = directory / f"tokens-{digest.hexdigest()[:16]}.safetensors"
    if file.is_file():
        return load_file(file)
    tensors = make()
    if os.access(directory, os.W_OK):  # data may well be read-only; then every run tokenises, which takes seconds
        unfinished = file.with_suffix(f".{os.getpid()}")
        save_file(tensors, unfinished)
        unfinished.replace(file)
    return tensors


GOOD = ["moving", "funny", "fresh", "warm", "bold", "tender", "wise", "lively"]
BAD = ["dull", "flat", "stale", "cold", "lazy", "loud", "empty", "tired"]
PLAIN = ["the", "film", "story", "plot", "cast", "score", "scene", "ending", "with", "and", "of", "its", "is"]


def made_up():
    """A stand-in of 600 + 200 sentences: plain words with two or three of one kind among them. No file is read."""
    rng = np.random.default_rng(0)
    labels = np.arange(800) % 2
    sentences = []
    for label in labels:
        words = [*rng.choice(PLAIN, rng.integers(4, 9)), *rng.choice(GOOD if label else BAD, rng.integers(2, 4))]
        sentences.append(rng.permutation(words))
    x, y = hashed(sentences), torch.from_numpy(labels)
    return Task("sst2-smoke", x[:600], y[:600], x[600:], y[600:], classes=2)


def hashed(sentences):
    """Token numbers without a vocabulary: each word by its checksum."""
    rows = torch.full((len(sentences), LENGTH), PAD)
    for row, words in zip(rows, sentences, strict=True):
        for place, word in enumerate(words[:LENGTH]):
            row[place] = 1 + zlib.crc32(word.encode()) % (WORDS - 1)
    return rows
