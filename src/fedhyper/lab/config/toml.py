"""TOML and ``key=value``: read with care, for a config may come from anywhere; what is written reads back the same."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhyper.errors import UserError, printable

MAX_BYTES = 1 << 20
# tomllib takes minutes for a key of 50,000 parts; every start is at the start of a part, so this search is linear.
_KEY = re.compile(r"\w[\w-]*(?:\.\w[\w-]*)*")  # local-lr is a key that is not known, and is told which is
_DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){50}""")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file of at most 1 MiB."""
    try:
        # Without O_NONBLOCK a FIFO nobody writes to would be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UserError(f"{printable(str(path))} is not a file; pass a TOML file, or a name such as digits")
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UserError(f"cannot read {printable(str(path))}: {reason}; pass a TOML file") from error
    return parse_toml(content, printable(str(path)))


def parse_toml(content: bytes, source: str) -> dict[str, Any]:
    """The tables in the bytes of a TOML file."""
    if len(content) > MAX_BYTES:
        raise UserError(f"{source}: longer than 1 MiB; a config has a few hundred bytes")
    if content.startswith(b"\xef\xbb\xbf"):
        raise UserError(f"{source}: starts with a byte order mark; save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
        if _DEEP.search(text):
            raise RecursionError
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: byte {error.start} is not UTF-8; save it as UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply; a config has one level of tables") from error
    except ValueError as error:  # TOMLDecodeError is one; so is an integer with thousands of digits
        raise UserError(f"{source}: not TOML: {printable(str(error))}") from error


def parse_override(text: str) -> tuple[str, Any]:
    """``partition.concentration=0.1`` → (key, value). The value is TOML; what is not TOML is a bare string."""
    key, value = split_override(text)
    return key, parse_value(value, key)


def split_override(text: str) -> tuple[str, str]:
    """``key=value`` → (key, what is written for the value)."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise UserError(f"'{printable(text)}' is not key=value, such as local_lr=0.1 or partition.kind=iid")
    return key, value.strip()


def parse_value(text: str, key: str = "value") -> Any:
    """A TOML value, or the text itself where it is none: ``0.1``, ``true``, ``"iid"``, ``iid``."""
    if not text:
        raise UserError(f"command line: {key} has no value; write {key}=VALUE")
    try:
        values = tomllib.loads(f"value = {text}")
    except RecursionError as error:
        raise UserError(f"command line: {key} is nested too deeply") from error
    except ValueError:
        return text
    return values["value"] if set(values) == {"value"} else text


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *tables, name = key.split(".")
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"command line: {key}: {table} is not a table")
        values = inner
    values[name] = value


def put_all(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set the values of dotted keys. Another model has options of its own: those given for the first do not stay."""
    if "model" in changes and changes["model"] != values.get("model"):
        values.pop("model_options", None)
    for key, value in changes.items():
        put(values, key, value)


def dump_toml(values: dict[str, Any]) -> str:
    """Flat values first, then a table for each dict that has something in it."""
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, table in values.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{key}]", *(f"{_key(name)} = {_toml(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool | int) else repr(value)
