"""What goes wrong because of an input, and the exit code each kind ends a command with.

One line a message: the setting, the value, the cure. Anything else that is raised is a bug of ours and keeps
its traceback.
"""

from __future__ import annotations


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
