"""A setting that explains itself: what it does, its unit and its range, said once, where it is declared.

    @dataclass(frozen=True)
    class Momentum:
        momentum: float = setting(0.9, "share of the last server step in the next one", low=0, below=1)

        def __post_init__(self) -> None:
            check_settings(self)

Whoever shows or checks a setting reads it here: the config, ``fedhyper methods``, the documents.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from fedhyper.arrays import is_number

_KEY = "fedhyper.setting"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may be said of a setting besides its default.

    help     what it does, and what raising it does
    unit     what kind of number it is, such as "a factor"; empty where the help says it
    low, high, above, below   its range: at least, at most, more than, less than; numbers are always finite
    choices  the words it may be; empty: any of its kind
    cure     what to do about a value that is refused
    kind     float (which takes whole numbers, too), int, bool or str: what its default is
    """

    help: str
    kind: type = float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    cure: str = ""

    @property
    def allowed(self) -> str:
        """Its range in words: ``at least 1``, ``in [0, 1)``, ``one of add, relative``."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind in (bool, str):
            return "true or false" if self.kind is bool else "a word"
        if self.kind is int:
            return f"a whole number, {replace(self, kind=float).allowed}".removesuffix(", a finite number")
        start, end = self.low if self.above is None else self.above, self.high if self.below is None else self.below
        if start is not None and end is not None:
            opening, closing = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"in {opening}{start:g}, {end:g}{closing}"
        if start is not None:
            return f"at least {start:g}" if self.above is None else f"a finite number above {start:g}"
        if end is not None:
            return f"at most {end:g}" if self.below is None else f"a finite number below {end:g}"
        return "a finite number"

    def accepts(self, value: object) -> bool:
        """Whether ``value`` is of the right kind and within the range."""
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.kind in (bool, str, int) and type(value) is not self.kind:
            return False
        return self.kind in (bool, str) or (
            is_number(value)
            and -math.inf < value < math.inf
            and abs(value) <= 1e308  # a whole number may lie beyond every float
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def refusal(self, name: str, value: object) -> str:
        """One line that says what is wrong with ``value``, and the cure."""
        kind = f"is {self.unit} and must be" if self.unit else "must be"
        return f"{name} {kind} {self.allowed}, got {value!r}" + (f"; {self.cure}" if self.cure else "")


def setting(default: Any = MISSING, help: str = "", **limits: Any) -> Any:
    """A dataclass field with this default and a ``Setting``: ``limits`` are its other attributes."""
    kind = type(default) if isinstance(default, bool | int | str) else float
    metadata = {_KEY: Setting(help=help, kind=kind, **limits)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass by name. A subclass that only changes a default keeps what its parent says of it."""
    if kind not in _settings:
        _settings[kind] = _collected(kind)
    return _settings[kind]


_settings: dict[type, dict[str, Setting]] = {}  # rules are made anew every local step: read once a class


def _collected(kind: type) -> dict[str, Setting]:
    known: dict[str, Setting] = {}
    for one in reversed(kind.__mro__):
        own: dict[str, Field[Any]] = one.__dict__.get("__dataclass_fields__", {})
        known |= {name: f.metadata[_KEY] for name, f in own.items() if _KEY in f.metadata}
    return {f.name: known[f.name] for f in fields(kind) if f.name in known}


def check_settings(instance: Any) -> None:
    """Refuse the first setting that is out of its range: ``bound is a factor and must be at least 1, got 0.3``."""
    for name, one in settings_of(type(instance)).items():
        value = getattr(instance, name)
        if not one.accepts(value):
            raise ValueError(one.refusal(name, value))
