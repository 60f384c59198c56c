"""What goes wrong because of an input, and the exit code each kind ends a command with.

One line a message: the setting, the value, the cure. Anything else that is raised is a bug of ours and keeps
its traceback.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable


class UserError(Exception):
    """A setting or a command is wrong (exit code 2)."""

    exit_code = 2


class TrainingStopped(UserError):
    """The guard ended training: no usable update for too many rounds (exit code 3)."""

    exit_code = 3


class CheckpointRefused(UserError):
    """A checkpoint is damaged, foreign, or belongs to another config (exit code 4)."""

    exit_code = 4


class DataError(UserError):
    """A data file is missing, damaged, or not what its name says (exit code 5)."""

    exit_code = 5


class StorageError(UserError):
    """The disk is full, the directory cannot be written, or another process holds it (exit code 74)."""

    exit_code = 74


# --- words that messages share -------------------------------------------------------------------------------


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The nearest of the ``known`` names, or all of them, as the cure at the end of a message.

    ``prefix`` stands before the name in what the person has to write, such as ``partition.``.
    """
    names = list(known)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean '{prefix}{near}'?"
    return f"choose one of {', '.join(names)}" if names else "it has none"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``word`` may be a misspelling of; None when all are too far.

    Case and ``-`` for ``_`` do not count, and of a dotted name the last part is enough: ``Kind`` is ``partition.kind``.
    """
    names = list(known)
    written = {plain(name.rpartition(".")[2]): name for name in reversed(names)} | {plain(name): name for name in names}
    near = difflib.get_close_matches(plain(word), written, n=1)
    return written[near[0]] if near else None


def plain(name: str) -> str:
    """A name as it is compared with others."""
    return name.lower().replace("-", "_")


def printable(text: str, limit: int = 200) -> str:
    """``text`` on one line of at most ``limit`` characters, without anything a terminal would obey."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def install(extra: str) -> str:
    """The cure for a package that is missing: the extra that brings it, from wherever fedhyper itself came."""
    return f"pip install '.[{extra}]' in the clone, or pip install 'fedhyper[{extra}]' if it came from PyPI"


def shown(value: object) -> str:
    """A value as TOML writes it, on one line and at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)
    except (TypeError, ValueError):  # a date, or a number with more digits than Python prints
        text = type(value).__name__
    return printable(text, 60)
