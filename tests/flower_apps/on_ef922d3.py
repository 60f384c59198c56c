"""A pytest plugin with which today's tests can be collected on commit ef922d3, whose modules lie elsewhere.

    git worktree add /tmp/old ef922d3
    PYTHONPATH=/tmp/old/src:. python -m pytest -n 0 -p tests.flower_apps.on_ef922d3 tests/test_flower_replies.py

What there was no form of then does nothing: the mods pass every message on. So a test fails by what the strategy does.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import fedhyper.flower


def _pass_on(message: Any, context: Any, call_next: Any) -> Any:
    return call_next(message, context)


def _module(name: str, **names: Any) -> None:
    found = sys.modules[name] = ModuleType(name)
    vars(found).update(names)


for _mod in ("mod", "climbing_mod"):
    setattr(fedhyper.flower, _mod, _pass_on)
sys.modules["fedhyper.flower.records.layout"] = importlib.import_module("fedhyper.flower.records")
_module("fedhyper.flower.run_log", shown=dict)
_module("fedhyper.automatic.ladder", Ladder=object)
