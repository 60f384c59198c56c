"""``fedhyper flower new``: a Flower app to start from."""

from __future__ import annotations

import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from fedhyper.errors import StorageError, UserError

TASKS = ("digits", "fmnist")


def new_app(directory: Path, task: str = "digits") -> Path:
    """Write the app into ``directory``, which must not exist or be empty; the directory comes back, absolute."""
    if task not in TASKS:
        raise UserError(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
    directory = Path(directory).absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not empty; choose another directory")
    try:
        with as_file(files("fedhyper.lab") / "flower_app") as template:
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(template, directory, ignore=ignore, dirs_exist_ok=True)
        for name in ("pyproject.toml", "README.md"):
            file = directory / name
            file.write_text(file.read_text().replace("NAME", app_name(directory.name)).replace("TASK", task))
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error
    return directory


def app_name(directory: str) -> str:
    """A name Flower takes: letters, digits and hyphens, at most 32 of them, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
    name = name if name[:1].isalpha() else f"app-{name}"
    return name[:32].rstrip("-")
