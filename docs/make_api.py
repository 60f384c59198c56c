"""Write the page of the public API from the source: ``python docs/make_api.py [FILE]``; without FILE it is printed.

What the page says of a name is its docstring. Arguments are a table: from ``fedhyper.settings`` where a setting has its
range there, else from the docstring, where a line ``name   what it does`` explains an argument. ``undocumented`` lists
the arguments that nobody explains.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ForwardRef, NamedTuple

import fedhyper
import fedhyper.client
import fedhyper.flower
import fedhyper.torch
from fedhyper.client.constants import DeltaConstants, PolyakConstants
from fedhyper.settings import settings_of
from fedhyper.sim import registry
from fedhyper.sim.simulation import Simulation

HEAD = """# The public API

Made from the source by `python docs/make_api.py docs/api.md`. What is not on this page may change without a word.
Δ is before − after, a *rate* has no unit, and a *round* is one exchange with the clients: [glossary](glossary.md).
`Array` is a number, a NumPy array, a torch tensor, or a list or dict of these.
"""
DEFINITION = re.compile(r"(?P<names>\w+(?:, \w+)*)\s{2,}(?P<text>\S.*)")


# Arguments that are settings of another class, which has their ranges.
SETTINGS_OF: dict[Any, type] = {
    fedhyper.auto: fedhyper.Auto,
    fedhyper.client.HyperSGD: fedhyper.FedHyperCL,
    fedhyper.client.DeltaSGD: DeltaConstants,
    fedhyper.client.delta_sgd_rate: DeltaConstants,
    fedhyper.client.PolyakSGD: PolyakConstants,
    fedhyper.torch.HyperServer: fedhyper.FedHyperG,
    fedhyper.client.polyak_rate: PolyakConstants,
}


class Part(NamedTuple):
    """A module whose names are public, and what is said above them."""

    module: str
    about: str
    names: dict[str, Any]


def parts() -> list[Part]:
    """The public names, in the order of the page."""
    packages = (
        (fedhyper, "Rules, plans and the server's loop. Needs the standard library only."),
        (fedhyper.client, "What clients train with. Needs torch."),
        (
            fedhyper.torch,
            "The server loop as an optimizer: [NVFlare](nvflare.md), [pfl](pfl.md). Needs torch.",
        ),
        (fedhyper.flower, "A strategy for Flower, and the client's side of it. Needs the `[flower]` extra."),
    )
    found = [Part(p.__name__, about, {name: getattr(p, name) for name in p.__all__}) for p, about in packages]
    registers = {name: getattr(registry, name) for name in vars(registry) if name.startswith("register_")}
    found.append(Part("fedhyper.sim.registry", "Names of yours for configs: [extend.md](extend.md).", registers))
    about = "The simulator as a class. Needs the `[sim]` extra."
    found.append(Part("fedhyper.sim.simulation", about, {"Simulation": Simulation}))
    return found


class Doc(NamedTuple):
    """A docstring, taken apart: what is written out, and what it says of each argument."""

    text: str
    arguments: dict[str, str]


def read(thing: Any) -> Doc:
    """The docstring of ``thing``: paragraphs, indented blocks as they are, and lines ``name   what it does``."""
    text, arguments = [], {}
    for block in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            text.append("\n".join(["```text", *(line[4:] for line in lines), "```"]))
        elif DEFINITION.fullmatch(lines[0]):
            names: list[str] = []
            for line in lines:
                if match := DEFINITION.fullmatch(line):
                    names = match["names"].split(", ")
                    arguments |= dict.fromkeys(names, match["text"])
                else:
                    arguments |= {name: f"{arguments[name]} {line.strip()}" for name in names}
        else:
            text.append(prose(block))
    return Doc("\n\n".join(text), arguments)


def prose(text: str) -> str:
    """Markdown of a docstring's sentence: its code is in double backticks, and <a, b> is no HTML."""
    pieces = re.split(r"(``.+?``)", text, flags=re.DOTALL)
    return "".join(p[1:-1] if p.startswith("``") else p.replace("<", "\\<") for p in pieces)


class Argument(NamedTuple):
    """A row of a table."""

    name: str
    default: str
    allowed: str
    help: str


def arguments(thing: Any) -> list[Argument]:
    """Every argument of a function, every field of a class that is made from its fields."""
    kind = SETTINGS_OF.get(thing, thing)
    says = settings_of(kind) if dataclasses.is_dataclass(kind) else {}
    told, rows = read(thing).arguments, []
    for one in inspect.signature(thing).parameters.values():
        allowed, text = f"`{_annotation(one)}`", told.get(one.name, "")
        if one.name in says:
            setting = says[one.name]
            allowed = f"{setting.unit}, {setting.allowed}" if setting.unit else setting.allowed
            text = text or setting.help
        rows.append(Argument(one.name, _default(one), allowed, text))
    return rows


def _default(one: inspect.Parameter) -> str:
    if one.default is inspect.Parameter.empty:
        return ""
    return "..." if repr(one.default) == "<factory>" else str(getattr(one.default, "__name__", repr(one.default)))


def _annotation(one: inspect.Parameter) -> str:
    kind = one.annotation
    return str(kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind)


def signature(name: str, thing: Any) -> str:
    """``name(a, *, b=1)``, without types, broken where it gets long."""
    words, star = [], False
    for one in inspect.signature(thing).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = _default(one)
        if one.name != "self":
            words.append(prefix + one.name + (f"={default}" if default else ""))
    lines = [f"{name}("]
    for i, word in enumerate(words):
        word += ", " if i + 1 < len(words) else ""
        if len(lines[-1]) + len(word) > 110:
            lines.append("    ")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines) + ")"


def members(kind: type) -> Iterator[str]:
    """A line for each method and property of its own, and of the private classes it is built on."""
    seen: set[str] = set()
    for one in kind.__mro__:
        if one is not kind and not one.__name__.startswith("_"):
            return
        for name, member in vars(one).items():
            if name.startswith("_") or name in seen or name in inspect.signature(kind).parameters:
                continue
            seen.add(name)
            member = member.__func__ if isinstance(member, classmethod) else member
            if isinstance(member, property):
                shown = name
            elif inspect.isfunction(member):
                shown = signature(name, member).replace("\n    ", " ").replace("(cls, ", "(").replace("(cls)", "()")
            else:
                continue
            first = inspect.cleandoc(member.__doc__ or "").partition("\n\n")[0]
            yield f"- `.{shown}`: {prose(' '.join(first.split()))}"


def entry(module: str, name: str, thing: Any) -> str:
    """What the page says of one name."""
    said = [f"### `{name}`", f"```text\n{signature(f'{module}.{name}', thing)}\n```", read(thing).text]
    rows = arguments(thing)
    if rows:
        table = ["| name | default | allowed | what it is |", "|---|---|---|---|"]
        for row in rows:
            cells = (f"`{row.name}`", f"`{row.default}`" if row.default else "", row.allowed, prose(row.help))
            table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        said.append("\n".join(table))
    if isinstance(thing, type):
        said.append("\n".join(members(thing)))
        parent = thing.__mro__[1]
        if parent.__name__ in fedhyper.__all__:
            said.append(f"The rest is as in `{parent.__name__}`.")
    return "\n\n".join(piece for piece in said if piece)


def undocumented() -> list[str]:
    """``module.name: argument`` for every argument that nobody explains."""
    return [
        f"{part.module}.{name}: {row.name}"
        for part in parts()
        for name, thing in part.names.items()
        for row in arguments(thing)
        if not row.help
    ]


def page() -> str:
    """The whole page."""
    said = [HEAD.strip()]
    for part in parts():
        said += [f"## {part.module}", part.about]
        said += [entry(part.module, name, thing) for name, thing in part.names.items()]
    return "\n\n".join(said) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(page(), end="")
    else:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
