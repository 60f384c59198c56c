"""Which run a config is of: what must stay the same when a run continues, and what may change."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedhyper.errors import shown
from fedhyper.lab.config.model import Config

# What may differ between a run and its continuation: how long, how often looked at, when to stop.
CHANGEABLE = frozenset(
    [
        "rounds",
        "eval_every",
        "checkpoint_every",
        "target_accuracy",
        "stop_at_target",
        "patience",
        "max_bad_rounds",
    ]
)


# Keys that came after the first checkpoints, with the value that changes nothing: runs from before still continue, and
# are compared with those of today.
LATER = {"validation": 0.0, "warmup_rounds": 0, "augment": "none", "dtype": "float32"}


def identity(config: Config) -> dict[str, Any]:
    """The values that determine every round, flat: what a continuation must have in common with its run."""
    flat: dict[str, Any] = {}
    for key, value in config.values().items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key not in CHANGEABLE and value != LATER.get(key):
            flat[key] = value
    return flat


def config_hash(config: Config) -> str:
    """SHA-256 of ``identity`` in canonical JSON."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()


def differences(config: Config, other: Config) -> list[str]:
    """``key (a, not b)`` for every key of ``identity`` in which ``config`` (a) departs from ``other`` (b)."""
    ours, theirs = identity(config), identity(other)
    return [
        f"{key} ({shown(ours.get(key, 'absent'))}, not {shown(theirs.get(key, 'absent'))})"
        for key in dict.fromkeys((*theirs, *ours))
        if ours.get(key) != theirs.get(key)
        if config.method == other.method or not key.startswith("options.")  # another method has other options
    ]
