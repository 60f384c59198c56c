"""The options of a registered function are its keyword arguments: read off its signature, checked against defaults."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedhyper.arrays import is_number
from fedhyper.errors import UserError, did_you_mean

MAX_WHOLE = 16_384  # units, layers, channels: more is a typing mistake, and torch would try for minutes
_WANTED = {bool: "true or false", int: f"a whole number, 1 to {MAX_WHOLE:,}", float: "a finite number", str: "a word"}


class Later:
    """``module.name``, imported when it is called or asked for: a config is checked without torch and NumPy."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.load()(*arguments, **settings)


def keyword_options(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of ``function`` that may be set, with their defaults."""
    whole = function.load() if isinstance(function, Later) else function
    parameters = inspect.signature(whole).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def checked_options(owner: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, if each is an option of ``function`` and of the kind its default is; ``owner`` is who has them.

    Whole numbers start at 1, as sizes do.
    """
    known, checked = keyword_options(function), dict(given)
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{owner} has no option {name!r}; {did_you_mean(name, known)}")
        kind = type(known[name])
        if kind is float and is_number(value) and abs(value) <= 1e308 and math.isfinite(value):
            checked[name] = float(value)
        elif kind not in _WANTED or type(value) is not kind or (kind is int and not 1 <= value <= MAX_WHOLE):
            raise UserError(f"{name} = {value!r:.40} of {owner} must be {_WANTED.get(kind, f'a {kind.__name__}')}")
    return checked
