"""``fedhyper methods``: every method, what it does, and what can be set of it."""

from __future__ import annotations

from typing import Any

from fedhyper.sim.methods import SUFFIXES, make_method, method_names, method_options, split_name
from fedhyper.sim.registry import METHODS


def methods_table() -> list[dict[str, Any]]:
    """One record a name, suffixes included: ``name``, ``summary``, and ``options`` with default, range and help."""
    return [describe(name) for name in method_names()]


def describe(name: str) -> dict[str, Any]:
    """The record of one method; an unknown one is refused."""
    base, suffix = split_name(name)
    summary = METHODS.get(base).summary
    if suffix and make_method(base, local_lr=1.0, global_lr=1.0).server is not None:
        summary = f"{suffix} on the server, in place of {summary}"
    elif suffix:
        summary += f"; {suffix} on the server"
    options = [
        {"name": one.name, "default": one.default, "allowed": one.says.allowed, "help": one.says.help}
        for one in method_options(name).values()
    ]
    return {"name": name, "summary": summary, "options": options}


def print_methods(name: str | None) -> None:
    """All methods with the names of their options, or one with all there is to say of it."""
    if name is not None:
        one = describe(name)
        print(f"{one['name']}: {one['summary']}")
        for option in one["options"]:
            print(f"  options.{option['name']} = {option['default']}  ({option['allowed']})  {option['help']}")
        return
    records = [describe(base) for base in METHODS]
    width = max(len(record["name"]) for record in records)
    for record in records:
        print(f"{record['name']:<{width}}  {record['summary']}")
        if record["options"]:
            print(f"{'':<{width}}    options: {', '.join(option['name'] for option in record['options'])}")
    suffixes = ", ".join(f"+{suffix}" for suffix in SUFFIXES)
    print(f"\nBehind any name: {suffixes}, which puts that optimizer on the server.")
    print("fedhyper methods NAME says what each option does; its names work in a config as method = NAME.")


def markdown() -> str:
    """The two tables of docs/config.md: the methods, and every option with the methods that have it."""
    lines = ["| `method` | what it does | its options |", "|---|---|---|"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in [*METHODS, *(f"fedavg+{suffix}" for suffix in SUFFIXES), "fedhyper+momentum"]:
        one, suffix = describe(name), split_name(name)[1]
        if suffix is None:
            names = ", ".join(f"`{option['name']}`" for option in one["options"]) or "none"
            lines.append(f"| `{name}` | {one['summary']} | {names} |")
        owner = name if suffix is None or "fedavg" not in name else f"+{suffix}"
        for option in one["options"]:
            row = (f"`{option['name']}`", f"`{option['default']}`", option["allowed"], _cell(option["help"]))
            if name != "fedhyper+momentum" or option["name"].startswith("server_"):
                rows.setdefault(row, []).append(f"`{owner}`")
    lines += ["", "| option | of | default | allowed | meaning |", "|---|---|---|---|---|"]
    for (option_name, *rest), owners in rows.items():
        lines.append(f"| {option_name} | {', '.join(owners)} | {' | '.join(rest)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
