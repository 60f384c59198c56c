"""Whether what a checkpoint holds is a state of this run: a digest proves that the bytes are whole, not what they say.

    check_state(restored, like=state)      ``like``: a state of the same run, as it is before its first round

Refused with ValueError, which says where: another structure, shape or type, a number where there can be none, a count
below 0, a word that is none of its kind. What is left is a forgery with weights that this run could have had.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedhyper.arrays import is_number
from fedhyper.guard import all_finite

_RATES = frozenset(("lr", "base", "global_lr", "local_lr"))  # fields of states that are above 0
_HIGHEST = 1e12  # no run has a rate like that and weights that are finite


def check_state(value: Any, like: Any, where: str = "state") -> None:
    """Refuse ``value`` unless it has the form of ``like``.

    A number in ``like`` may have become an array since (0.0 stands for "none yet"), of one of the shapes that occur in
    ``like``; a plain tuple may have grown. A count (int) is not below 0. Only a float may be NaN or infinite.
    """
    _check(value, like, where, frozenset(_shapes(like)))


def _shapes(like: Any) -> list[tuple[int, ...]]:
    if hasattr(like, "dtype"):
        return [tuple(like.shape)]
    if isinstance(like, dict):
        return [shape for item in like.values() for shape in _shapes(item)]
    return [shape for item in like for shape in _shapes(item)] if isinstance(like, (tuple, list)) else []


def _check(value: Any, like: Any, where: str, shapes: frozenset[tuple[int, ...]]) -> None:
    if hasattr(like, "_fields"):
        _expect(type(value) is type(like), where, f"is no {type(like).__name__}")
        words = _words(type(like))  # type: ignore[arg-type]
        for name, item, model in zip(like._fields, value, like, strict=True):
            _check(item, model, f"{where}.{name}", shapes)
            _expect(name not in words or item in words[name], f"{where}.{name}", f"is none of {words.get(name)}")
            _expect(name not in _RATES or 0 < item < _HIGHEST, f"{where}.{name}", "is no rate")
    elif isinstance(like, (tuple, list)):
        fixed = any(hasattr(item, "_fields") for item in like)
        whole = isinstance(value, type(like)) and (len(value) == len(like) if fixed else len(value) < 1_000_000)
        _expect(whole, where, f"is no {type(like).__name__} of this kind")
        for i, item in enumerate(value):
            model = like[i] if i < len(like) else like[-1] if like else 0.0
            _check(item, model, f"{where}[{i}]", shapes)
    elif isinstance(like, dict):
        _expect(isinstance(value, dict) and value.keys() == like.keys(), where, "has other names")
        for name, model in like.items():
            _check(value[name], model, f"{where}.{name}", shapes)
    elif hasattr(like, "dtype"):
        same = getattr(value, "dtype", None) == like.dtype and tuple(value.shape) == tuple(like.shape)
        _expect(same, where, f"is no array of {like.dtype} and shape {tuple(like.shape)}")
        _expect(all_finite(value), where, "has numbers that are not finite")
    elif hasattr(value, "dtype"):
        _expect(isinstance(like, float) and tuple(value.shape) in shapes, where, "is an array of no shape of this run")
        _expect("float" in str(value.dtype) and all_finite(value), where, "has numbers that are not finite")
    elif isinstance(like, (bool, str)) or like is None:
        _expect(type(value) is type(like), where, f"is no {type(like).__name__}")
    elif isinstance(like, int):
        _expect(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62, where, "is no count")
    else:
        _expect(is_number(value), where, "is no number")


@cache
def _words(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The fields of a NamedTuple that are one of a few words, and these."""
    hints = get_type_hints(kind)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _expect(fact: bool, where: str, otherwise: str) -> None:
    if not fact:
        raise ValueError(f"{where} {otherwise}")
