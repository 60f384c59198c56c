"""Break layer 1 one small change at a time and see the suite notice: ``python tests/mutants.py [FILE ...]``.

The changes are made from the syntax tree (``mutations.py``). Torch and pytest are imported once; every mutant is a fork
of that process in which one module is compiled from the changed tree. Its judges are the tests of that file and of the
files that import it, quick ones first; the first that fails has killed it. Printed are the kill rate of every file and
every survivor with its line. Exit code 1: the rate is below ``--at-least``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib.util
import io
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedhyper"
sys.path.insert(0, str(ROOT))

from tests.mutations import sites  # noqa: E402

SECONDS = 300  # of processor time for one judge: a mutant that needs more runs in circles
QUICK = ["-x", "-q", "--assert=plain", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS = [*QUICK, "-m", "not slow", "-o", "timeout=60", "--hypothesis-seed=0", f"--rootdir={ROOT}"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before pytest could rewrite it


class Mutant(NamedTuple):
    """Change number ``number`` of the module ``file`` (without ``.py``)."""

    file: str
    number: int
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}.py:{self.line}: {' '.join(self.old.split())[:70]} -> {' '.join(self.new.split())[:70]}"


# Which files, and who judges them ------------------------------------------------------------------------------------


def layer_1() -> list[str]:
    """The files of layer 1: those right in the package, and ``automatic/``."""
    paths = [*PACKAGE.glob("*.py"), *PACKAGE.glob("automatic/*.py")]
    return sorted(path.relative_to(PACKAGE).as_posix().removesuffix(".py") for path in paths)


def targets() -> list[str]:
    """Those that are broken: not the gathered names, nor the exit codes, which belong to the command line's tests."""
    return [file for file in layer_1() if file != "errors" and not file.endswith("__init__")]


def imported(path: Path) -> set[str]:
    """The files of this package that ``path`` imports; a name of ``fedhyper`` itself is looked up in ``__init__``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedhyper":
            below = "/".join((node.module or "").split(".")[1:])
            for name in [alias.name for alias in node.names]:
                inside = f"{below}/{name}".strip("/")
                if (PACKAGE / f"{inside}.py").is_file() or (PACKAGE / inside).is_dir():
                    found.add(inside)
                elif (PACKAGE / f"{below}.py").is_file():
                    found.add(below)
                else:
                    found.add(_exported(below).get(name, below or "__init__"))
    return found


def _exported(package: str) -> dict[str, str]:
    """Where the names come from that the ``__init__`` of ``package`` takes over."""
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text())
    return {
        alias.name: "/".join((node.module or "").split(".")[1:])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def judges() -> dict[str, list[str]]:
    """For every file of layer 1, the tests that judge it: those that use it, or that use a file which imports it.

    A test counts if it uses layer 1 and nothing above, so that it is quick.
    """
    files, uses = set(layer_1()), {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        found = imported(path) - {"__init__"}
        if found and found <= files and "from tests" not in path.read_text():
            uses[path.stem] = found
    below = {file: imported(PACKAGE / f"{file}.py") for file in files}
    near = {file: {other for other in files if file in below[other]} | {file} for file in files}
    return {file: [name for name, found in uses.items() if found & near[file]] for file in files}


def mutants(files: list[str]) -> list[Mutant]:
    """Every mutant of these files."""
    found = {file: sites(ast.parse((PACKAGE / f"{file}.py").read_text())) for file in files}
    return [Mutant(file, i, s.line, s.old, s.new) for file in files for i, s in enumerate(found[file])]


def sample(chosen: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """``size`` of them, by a hash of what they change: an edit elsewhere in the file leaves the choice as it is."""
    seen: Counter[str] = Counter()
    keys = {}
    for mutant in chosen:
        what = f"{mutant.file} {mutant.old} {mutant.new}"
        seen[what] += 1
        keys[mutant] = hashlib.sha256(f"{seed} {what} {seen[what]}".encode()).hexdigest()
    return sorted(sorted(chosen, key=keys.__getitem__)[:size])


# One mutant, in a fork ------------------------------------------------------------------------------------------------


class _Broken(SourceFileLoader):
    """Loads one module of this package from its changed tree, every other as it is."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.module = "fedhyper." + mutant.file.replace("/", ".")
        super().__init__(self.module, str(PACKAGE / f"{mutant.file}.py"))

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.module else None

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text())
        sites(tree)[self.mutant.number].apply()
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


def _judge(mutant: Mutant | None, names: list[str], log: Path) -> int:
    """In the fork: pytest's exit code, 0 if every test passes."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    os.environ["PYTHONPATH"] = str(PACKAGE.parent)
    sys.path.insert(0, str(PACKAGE.parent))  # before an installed one
    if mutant:
        sys.meta_path.insert(0, _Broken(mutant))  # type: ignore[arg-type]
    with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            import fedhyper

            assert Path(fedhyper.__file__).is_relative_to(ROOT), f"{fedhyper.__file__} is another fedhyper"
        except Exception as error:  # a mutant that cannot even be imported is noticed
            print(f"FAILED ::import: {error}")
            return 1
        for name in names:
            if code := int(pytest.main([*OPTIONS, str(ROOT / "tests" / f"{name}.py")])):
                return code
        return 0


class Verdict(NamedTuple):
    """What became of a mutant: pytest's exit code or minus a signal, the test that failed, processor seconds."""

    code: int
    failed: str
    seconds: float


def judge_all(jobs: list[tuple[Mutant | None, list[str]]], parallel: int) -> list[Verdict]:
    """Each job in a fork of its own, ``parallel`` at a time."""
    verdicts: dict[int, Verdict] = {}
    running: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        waiting = list(range(len(jobs)))
        while waiting or running:
            while waiting and len(running) < parallel:
                number = waiting.pop(0)
                child = os.fork()
                if child == 0:
                    code = 2
                    try:
                        code = _judge(*jobs[number], Path(folder, str(number)))
                    finally:
                        os._exit(code)
                running[child] = number
            child, status, usage = os.wait4(-1, 0)
            number = running.pop(child)
            print(f"\r{len(verdicts) + 1} of {len(jobs)}", end="", file=sys.stderr, flush=True)
            log = Path(folder, str(number)).read_text().splitlines() if Path(folder, str(number)).exists() else []
            failed = [line for line in log if line.startswith(("FAILED", "ERROR"))]
            verdicts[number] = Verdict(
                os.waitstatus_to_exitcode(status),
                failed[0].partition("::")[2].partition(" - ")[0] if failed else "",
                usage.ru_utime + usage.ru_stime,
            )
    print(file=sys.stderr)
    return [verdicts[number] for number in range(len(jobs))]


def _warm() -> None:
    """Import here, once, what every fork needs; and spare the forks the search for garbage in it."""
    import numpy
    import pytest
    import threadpoolctl
    import torch

    assert all((numpy, threadpoolctl))
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*OPTIONS, "--collect-only", __file__])  # loads pytest's plugins
    gc.freeze()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", help="files of layer 1, e.g. schedulers automatic/auto; all if none")
    parser.add_argument("--sample", type=int, default=0, help="judge only so many, a fixed choice; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="which choice")
    parser.add_argument("--tests", nargs="+", help="let only these judge, e.g. test_theory")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit code 1 below this kill rate, in [0, 1]")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--judges", action="store_true", help="print the test files of layer 1, run nothing")
    parser.add_argument("--list", action="store_true", help="print the mutants and their judges, run nothing")
    return parser.parse_args()


def main() -> int:
    """Judge them all and print the table."""
    chosen, known = arguments(), judges()
    if unknown := [file for file in chosen.files if file not in known]:
        sys.exit(f"no file of layer 1: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if chosen.tests:
        known = dict.fromkeys(known, chosen.tests)
    todo = mutants(chosen.files or targets())
    todo = sample(todo, chosen.sample, chosen.seed) if chosen.sample else todo
    if chosen.judges:
        print(*sorted({f"tests/{name}.py" for names in known.values() for name in names}))
        return 0
    if chosen.list:
        print(*todo, sep="\n")
        print(*(f"{file}: {' '.join(names)}" for file, names in sorted(known.items())), sep="\n")
        return 0
    _warm()
    start = time.monotonic()
    names = sorted({name for mutant in todo for name in known[mutant.file]})
    whole = dict(zip(names, judge_all([(None, [name]) for name in names], chosen.jobs), strict=True))
    if bad := [f"{name} {verdict.failed}" for name, verdict in whole.items() if verdict.code]:
        sys.exit(f"the suite fails without any mutant: {', '.join(bad)}")
    order = {m.file: sorted(known[m.file], key=lambda name: whole[name].seconds) for m in todo}
    return report(todo, judge_all([(m, order[m.file]) for m in todo], chosen.jobs), start, chosen.at_least)


def report(todo: list[Mutant], verdicts: list[Verdict], start: float, at_least: float) -> int:
    """Print what became of them; 1 if too few were killed."""
    # 1: tests failed; 2: collection broke, or interrupted; minus a signal: it ran in circles. 0: nothing noticed it.
    survivors = [mutant for mutant, verdict in zip(todo, verdicts, strict=True) if verdict.code == 0]
    count, alive = Counter(m.file for m in todo), Counter(m.file for m in survivors)
    print(f"{'file':20} {'mutants':>8} {'killed':>8} {'survived':>9} {'rate':>7}")
    for file in sorted(count):
        rate = 1 - alive[file] / count[file]
        print(f"{file:20} {count[file]:8} {count[file] - alive[file]:8} {alive[file]:9} {rate:7.1%}")
    rate = 1 - len(survivors) / max(len(todo), 1)
    print(f"{'all':20} {len(todo):8} {len(todo) - len(survivors):8} {len(survivors):9} {rate:7.1%}")
    for mutant in survivors:
        print(f"SURVIVED {mutant}")
    used = sum(verdict.seconds for verdict in verdicts)
    print(f"{used:.0f} s of processor time, {time.monotonic() - start:.0f} s in all")
    return 1 if rate < at_least else 0


if __name__ == "__main__":
    sys.exit(main())
