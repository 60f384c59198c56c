"""What is wrong with a config, in one line: the place, the key, the value and the cure, not pydantic's paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from pydantic import ValidationError

from fedhyper.errors import did_you_mean, nearest, plain, printable, shown

# A union adds the branch that failed to the place of an error.
_BRANCHES = frozenset({"bool", "int", "float", "str"})
# What people bring along from papers and other libraries.
_MEANT = {
    "alpha": "write global_lr for the server's rate (the paper's α), partition.concentration for Dirichlet's α",
    "beta": "write local_lr for the clients' rate (the paper's β)",
    **dict.fromkeys(("lr", "learning_rate"), "did you mean 'local_lr'?"),
    "optimizer": "did you mean 'local_optimizer'?",
    "momentum": "did you mean 'local_optimizer = \"momentum\"' (clients) or 'options.momentum' (the server)?",
    "nesterov": "did you mean 'local_optimizer = \"nesterov\"'?",
    **dict.fromkeys(("grad_clip", "max_grad_norm"), "did you mean 'clip_norm'?"),
    **{
        name: f"it is no part of a config; write --{name} VALUE"
        for name in ("workers", "device", "out", "jobs", "track")
    },
}


def explain(error: ValidationError, source: str, overridden: Iterable[str], keys: list[str]) -> str:
    """The first error, and how many more. ``keys`` are what a config has; the command line changed ``overridden``."""
    first, *more = error.errors()
    key = ".".join(_place(first))
    cause = _cause(key, first, keys)
    if not key or first["type"] == "value_error":  # of a table, or of the config as a whole
        where = blamed(cause, source, overridden)
    else:
        # options.a.b was typed, and options.a is wrong; or options was, as a table, and options.a is wrong
        typed = any(f"{one}.".startswith(f"{key}.") or key.startswith(f"{one}.") for one in overridden)
        where = "command line" if typed else source
    several = more and first["type"] != "union" and len({_place(one) for one in error.errors()}) > 1
    return f"{where}: {cause}" + (f" (and {len(more)} more)" if several else "")


def blamed(message: str, source: str, overridden: Iterable[str]) -> str:
    """Whose fault a message about several keys is: the command line's if it changed one that the message names."""
    said = set(re.findall(r"[\w-]+(?:\.[\w-]+)*", message))
    return "command line" if said & set(overridden) else source


def _place(error: Any) -> tuple[str, ...]:
    place = tuple(map(str, error["loc"]))
    # only at the end of table, key, branch: somebody may write a key of that name
    return place[:-1] if len(place) > 2 and place[-1] in _BRANCHES else place


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, date | time) else shown(value)  # JSON, which that writes, has no dates


def _cause(key: str, error: Any, keys: list[str]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        meant = _MEANT.get(plain(key).rpartition(".")[2]) or did_you_mean(key, keys)
        return f"key '{printable(key)}' is not known; {meant}"
    value = error["input"]
    if key == "partition" and isinstance(value, str):
        return f"partition = {_shown(value)} must be a table; did you mean 'partition.kind={printable(value)}'?"
    if key.startswith(("options.", "model_options.")):
        return f"{printable(key)} = {_shown(value)} must be a finite number, a string, true or false"
    if kind == "literal_error":
        choices = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"{key} = {_shown(value)} must be one of {', '.join(choices)}" + (
            f"; {did_you_mean(value, choices)}" if isinstance(value, str) and nearest(value, choices) else ""
        )
    expected = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a string",
        "string_too_short": "a name",
        "string_too_long": "a name of at most 100 characters",
        "model_type": f"a table, as in [{key}]",
        "dict_type": f"a table, as in [{key}]",
        "greater_than": f"above {context.get('gt', 0):,}",
        "greater_than_equal": f"at least {context.get('ge', 0):,}",
        "less_than": f"below {context.get('lt', 0):,}",
        "less_than_equal": f"at most {context.get('le', 0):,}",
    }.get(kind, str(error["msg"]).lower())
    return f"{printable(key)} = {_shown(value)} must be {expected}"
