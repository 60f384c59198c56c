"""The experiments that come with the package: ``fedhyper run digits`` works without a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedhyper.errors import StorageError, UserError, did_you_mean, printable

DIRECTORY = Path(__file__).parent / "experiments"


def starters() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def experiment_file(given: Path) -> Path:
    """The config that was asked for: a file, or else one of the package's by its name, such as ``digits``."""
    name = str(given)
    if name in starters() and not given.is_file():  # a directory of that name is what ``run --out digits`` leaves
        if Path(f"{name}.toml").is_file():
            say = f"{name} is the config inside fedhyper; for the file {name}.toml here write {name}.toml"
            print(f"fedhyper: note: {say}", file=sys.stderr)
        return DIRECTORY / f"{name}.toml"
    if not given.exists() and name.removesuffix(".toml") in starters():
        stem = given.stem
        raise UserError(
            f"there is no {name} here; fedhyper has one inside: write {stem}, or make it: fedhyper new {stem}"
        )
    if given.exists() or given.suffix or os.sep in name:
        return given
    own = given.with_name(f"{given.name}.toml")
    hint = f"did you mean '{printable(str(own))}'?" if own.is_file() else did_you_mean(name, starters())
    raise UserError(f"{printable(name)} is neither a file nor an experiment of fedhyper; {hint}")


def new_experiment(name: str, like: str | None) -> Path:
    """Write ``NAME.toml``, a copy of one of the package's experiments; nothing is overwritten."""
    target = Path(name if name.endswith(".toml") else f"{name}.toml")
    if not target.name.removesuffix(".toml").strip("."):  # "", "." and ".." are no names
        raise UserError(f"NAME = '{printable(name)}' is not the name of a file; write one such as mine")
    source = like or (target.stem if target.stem in starters() else "digits")
    if source not in starters():
        raise UserError(
            f"--like {printable(source)} is not an experiment of fedhyper; {did_you_mean(source, starters())}"
        )
    text = (DIRECTORY / f"{source}.toml").read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{target} exists; choose another name") from None
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; choose another place") from error
    return target
