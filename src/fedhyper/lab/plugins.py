"""``--import MODULE``: code of one's own that registers tasks, models, methods, client optimizers or partitions.

A config never names a module, so one from somewhere else runs none of its author's code; the person at the keyboard
does. Processes that this one starts (the cells of a sweep, Flower's nodes) import the same, from the environment.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fedhyper.errors import CheckpointRefused, UserError

_VARIABLE = "FEDHYPER_IMPORT"  # JSON: what was imported, and from which directory
_imported: dict[str, dict[str, Any]] = {}


def import_modules(names: Sequence[str], directory: Path | None = None) -> None:
    """Import each module, by name (the current directory included) or as a path to a ``.py`` file."""
    from fedhyper.sim.registry import METHODS

    directory = (directory or Path.cwd()).resolve()
    for name in names:
        if name in _imported:
            continue
        known = set(METHODS)
        try:
            module = _import_file(name, directory) if name.endswith(".py") else _import_name(name, directory)
            _check_methods(set(METHODS) - known)
        except UserError as error:
            raise UserError(f"--import {name}: {error}") from error
        except (Exception, SystemExit) as error:  # whatever the code of others does wrong
            raise UserError(f"--import {name}: {type(error).__name__}: {error}; --debug shows where") from error
        file = Path(module.__file__ or "").resolve()
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        _imported[name] = {"import": name, "module": module.__name__, "file": str(file), "sha256": digest}
    if _imported:
        os.environ[_VARIABLE] = json.dumps({"directory": str(directory), "imports": list(_imported)})


def import_inherited() -> None:
    """Import what the process that started this one had imported."""
    if _VARIABLE in os.environ:
        told = json.loads(os.environ[_VARIABLE])
        import_modules(told["imports"], Path(told["directory"]))


def imported() -> list[dict[str, Any]]:
    """What was imported, for ``env.json``: as it was asked for, the module's name, its file, the file's SHA-256."""
    return list(_imported.values())


def check_imports(out: Path) -> None:
    """Refuse to continue the run in ``out`` without the modules it was started with; say so when one has changed."""
    from fedhyper.storage.files import read_json

    env = (read_json(out / "env.json") or {}) if out.is_dir() else {}
    known = env.get("imports")
    for one in known if isinstance(known, list) else []:
        now = next((mine for mine in imported() if mine["module"] == one.get("module")), None)
        if now is None:
            raise CheckpointRefused(f"{out} was started with --import {one.get('import')}; add it to continue")
        if now["sha256"] != one.get("sha256"):
            print(
                f"fedhyper: note: {now['file']} has changed since {out} was started: the bits may differ",
                file=sys.stderr,
            )


def _check_methods(names: Iterable[str]) -> None:
    """Make each of the new methods once: one that cannot be made would stop whoever lists them all."""
    from fedhyper.sim.methods import Method, make_method

    for name in sorted(names):
        try:
            made = make_method(name, local_lr=1.0, global_lr=1.0)
        except UserError:
            raise
        except Exception as error:  # whatever the code of others does wrong
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"method '{name}' cannot be made: {said}; --debug shows where") from error
        if not isinstance(made, Method):
            raise UserError(f"method '{name}' is {type(made).__name__}; return a Method, such as given.method()")


def _import_name(name: str, directory: Path) -> ModuleType:
    _reachable(directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the module is there; what it imports is not
        raise UserError(
            f"there is no such module in {directory} or on sys.path; a file is given with its .py"
        ) from error


def _import_file(name: str, directory: Path) -> ModuleType:
    path = (directory / name).resolve()
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    there = sys.modules.get(path.stem)
    if there is not None and Path(getattr(there, "__file__", None) or "").resolve() == path:
        return there
    if there is not None or spec is None or spec.loader is None or not path.stem.isidentifier():
        raise UserError("a module of that name is there already; rename the file (letters, digits and _)")
    _reachable(path.parent)  # for what it imports from beside it
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _reachable(directory: Path) -> None:
    # At the end: a file of that directory must not stand in for a module that others import.
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
