"""Break layer 1 one line at a time and see the suite notice: ``python tests/mutants.py [file or text to select]``.

Each mutant is a copy of the package in a temporary directory with one line changed. The fast tests of layer 1 run
against the copy; a mutant that no test fails is a hole in the suite, and the exit code is 1. Torch and pytest are
imported once and every mutant runs in a fork of that process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = {  # by the file that is broken, the quick ones first; the later ones run only if those noticed nothing
    "arrays": ["arrays", "trajectories", "laws"],
    "schedulers": ["trajectories", "laws", "guard"],
    "baselines": ["trajectories", "laws"],
    "optimizers": ["server"],
    "guard": ["guard", "trajectories", "laws"],
    "plan": ["plans", "trajectories"],
    "automatic/auto": ["auto"],
    "theory": ["theory"],
}
SECONDS = 300  # no mutant here hangs: longer than this is an accident, not a kill


class Mutant(NamedTuple):
    """In ``file``, ``old`` (which occurs there once) becomes ``new``."""

    file: str
    old: str
    new: str


MUTANTS = [
    # arrays
    Mutant("arrays", "return array.double() if", "return array if"),
    Mutant("arrays", "and not isinstance(value, bool)", ""),
    Mutant("arrays", "else a * 0 + b", "else a * b"),
    Mutant("arrays", "if left != right:", "if left[-1:] != right[-1:]:"),
    Mutant("arrays", "range(0, max(a.shape[-1], 1), _CHUNK)", "range(0, max(a.shape[-1] - 1, 1), _CHUNK)"),
    Mutant("arrays", "slice(start, start + _CHUNK)", "slice(start, start + _CHUNK - 1)"),
    Mutant("arrays", "_CHUNK = 16_384", "_CHUNK = 65_536_000"),
    Mutant("arrays", "except (OverflowError, ValueError)", "except (OverflowError,)"),
    Mutant("arrays", "inner(a, a) ** 0.5 *", "inner(a, a) *"),
    Mutant("arrays", "where(scale > 0, scale, 1.0)", "scale"),
    Mutant("arrays", "_flat(_fit(x, y))", "_flat(y)"),
    # schedulers
    Mutant("schedulers", "before: Array = 0.0", "before: Array = 1.0"),
    Mutant("schedulers", 'scale = self.lr if self.bounds == "relative" else 1.0', "scale = self.lr"),
    Mutant("schedulers", "return scale / self.bound, scale * self.bound", "return 1 / self.bound, scale * self.bound"),
    Mutant("schedulers", "clamp(self.lr, *self.range, keep=self.lr)", "self.lr"),
    Mutant("schedulers", "moved = lr + self.hyper_lr * h\n", "moved = lr - self.hyper_lr * h\n"),
    Mutant("schedulers", "moved = lr + self.hyper_lr * h\n", "moved = lr + h\n"),
    Mutant("schedulers", "lr + self.hyper_lr * self.lr * h", "lr + self.hyper_lr * lr * h"),
    Mutant("schedulers", "min(2 * math.log(self.bound), 700.0)", "math.log(self.bound)"),
    Mutant("schedulers", "min(2 * math.log(self.bound), 700.0)", "2 * math.log(self.bound)"),
    Mutant("schedulers", "return clamp(moved, low, high, keep=lr)", "return clamp(moved, low, high, keep=low)"),
    Mutant("schedulers", "return clamp(moved, low, high, keep=lr)", "return moved"),
    Mutant("schedulers", "where(rows, direction, state.before)", "direction"),
    Mutant(
        "schedulers", "self._compare(delta, state.before), delta)", "self._compare(delta, state.before), state.before)"
    ),
    Mutant("schedulers", "along + globally / self.local_steps", "along + globally"),
    Mutant("schedulers", "along + globally / self.local_steps", "along - globally / self.local_steps"),
    Mutant("schedulers", "not (is_number(state.before) and state.before == 0)", "True"),
    Mutant("schedulers", "not (is_number(state.before) and state.before == 0)", "not is_number(state.before)"),
    Mutant(
        "schedulers", "where(globally > 0, more, where(globally < 0, less, along))", "where(globally > 0, more, less)"
    ),
    Mutant("schedulers", "turned + 0.0 * globally", "turned"),
    Mutant("schedulers", "along * (1 + self.epsilon), along * (1", "along * (1 - self.epsilon), along * (1"),
    Mutant("schedulers", 'if self.hypergrad == "inner" else', 'if self.hypergrad == "cosine" else'),
    Mutant("schedulers", '"bounds": "absolute", "hypergrad"', '"bounds": "relative", "hypergrad"'),
    Mutant("schedulers", "low=1,", "above=1,"),
    Mutant("schedulers", 'and saved["lr"] > 0', ""),
    # baselines
    Mutant(
        "baselines",
        "self.factor**state.before, state.before + 1",
        "self.factor ** (state.before + 1), state.before + 1",
    ),
    Mutant("baselines", "sq_norm / (2 * (", "sq_norm / (("),
    Mutant("baselines", "clamp(float(rate), 1.0,", "clamp(float(rate), 0.0,"),
    # server
    Mutant(
        "optimizers", "self.momentum * state.mean + delta", "self.momentum * state.mean + (1 - self.momentum) * delta"
    ),
    Mutant("optimizers", "delta / (square**0.5 + self.tau)", "delta / ((square + self.tau) ** 0.5)"),
    Mutant("optimizers", "return mean / (square**0.5 + self.tau)", "return mean / (state.square**0.5 + self.tau)"),
    Mutant(
        "optimizers",
        "(state.square > new) * 1.0 - (state.square < new) * 1.0",
        "(state.square < new) * 1.0 - (state.square > new)",
    ),
    # guard
    Mutant("guard", "if math.isfinite(value) else keep", "if not math.isnan(value) else keep"),
    Mutant(
        "guard",
        "return min(max(float(value), low), high) if math.isfinite(value) else keep",
        "return max(min(value, high), low)",
    ),
    Mutant("guard", "return where(isfinite(value), elementwise", "return where(value == value, elementwise"),
    Mutant("guard", "0 < examples <=", "0 <= examples <="),
    Mutant("guard", "if tuple(delta.shape) != tuple(like.shape):", "if delta.shape[-1:] != like.shape[-1:]:"),
    Mutant("guard", "if not all_finite(delta):", "if bool((delta != delta).any()):"),
    Mutant("guard", "factor * median(norms)", "median(norms)"),
    Mutant("guard", "else limit / norm", "else 1 / norm"),
    Mutant("guard", "self.above_best * state.best", "self.above_best * state.first"),
    Mutant("guard", "return state._replace(rollback=True)", "return LossState(state.first, loss, rollback=True)"),
    Mutant("guard", "min(loss, state.best)", "loss"),
    # plans
    Mutant(
        "plan",
        "local = self.local_rule.update(self.local_rule.init(),",
        "local = (lambda s, *_: s)(self.local_rule.init(),",
    ),
    Mutant("plan", '"sq_norm": sq_norm}', '"sq_norm": loss}'),
    Mutant("plan", "PlanState(glob.lr, local.lr, False", "PlanState(local.lr, glob.lr, False"),
    # automatic
    Mutant("automatic/auto", "min(self.local_lr * self.global_lr, self.probe)", "min(self.local_lr, self.probe)"),
    Mutant("automatic/auto", "min(self.local_lr * self.global_lr, self.probe)", "self.local_lr * self.global_lr"),
    Mutant("automatic/auto", "(h + self.drive - self.brake * p * p)", "(h + self.drive - self.brake * p)"),
    Mutant("automatic/auto", "(h + self.drive - self.brake * p * p)", "(h - self.brake * p * p)"),
    Mutant("automatic/auto", "1 / (1 - self.momentum) if", "1.0 if"),
    Mutant("automatic/auto", "math.exp(self.hyper_lr / 4)", "1.0"),
    Mutant("automatic/auto", "0.0 if climbing else self.momentum", "self.momentum"),
    Mutant("automatic/auto", "plus(delta, momentum, rate.before) if", "delta if"),
    Mutant("automatic/auto", "0 if early else seen.averaged + 1", "seen.averaged + 1"),
    Mutant("automatic/auto", "parts, newest, not climbing, momentum)", "parts, newest, True, momentum)"),
    Mutant("automatic/auto", "math.sqrt(factor), averaged=0)", "math.sqrt(factor))"),
    Mutant("automatic/auto", "self.climb**2 if rate.lr < self.probe else self.climb", "self.climb"),
    Mutant("automatic/auto", "min(rate.lr * factor, ceiling)", "rate.lr * factor"),
    Mutant("automatic/auto", "return PlanState(1.0, rate.lr, True,", "return PlanState(1.0, rate.lr, False,"),
    Mutant("automatic/auto", "if length > 0 else 0.0", "if length >= 0 else 0.0"),
    # theory
    Mutant("theory", "g2, g4 = local_bound**2, local_bound**4", "g2, g4 = local_bound**2, local_bound**2"),
    Mutant("theory", "((k - 1) / g2 + 1) / g2", "((k - 1) / g2 + 1)"),
    Mutant("theory", "P / math.sqrt(M * k * T)", "P / (M * k * T)"),
]


def mutate(mutant: Mutant | None, into: Path) -> Path:
    """A copy of the package under ``into`` with the line changed (or whole, for None); the folder to import from."""
    shutil.copytree(ROOT / "src" / "fedhyper", into / "fedhyper", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant:
        path = into / "fedhyper" / f"{mutant.file}.py"
        text = path.read_text()
        assert text.count(mutant.old) == 1
        path.write_text(text.replace(mutant.old, mutant.new))
    return into


def _run_tests(source: Path, names: list[str], log: Path) -> int:
    """Child process: import fedhyper from ``source``, run these tests, return pytest's exit code."""
    import pytest

    sys.path.insert(0, str(source))  # before the editable install
    os.environ["PYTHONPATH"] = str(source)
    with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            import fedhyper

            assert Path(fedhyper.__file__).is_relative_to(source), f"{fedhyper.__file__} is not the mutant"
        except Exception as error:  # a mutant that cannot even be imported is noticed
            print(f"FAILED import: {error}")
            return 1
        options = ["-x", "-q", "--assert=plain", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before pytest could rewrite it
        code = 0
        for name in names:
            code = code or int(pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "tests" / f"test_{name}.py")]))
        return code


def judge(mutant: Mutant | None) -> tuple[int, str]:
    """Exit code of the tests against this mutant, and the test that failed."""
    names = TESTS[mutant.file] if mutant else sorted({name for names in TESTS.values() for name in names})
    with tempfile.TemporaryDirectory() as folder:
        source, log = mutate(mutant, Path(folder) / "src"), Path(folder) / "log"
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = _run_tests(source, names, log)
            finally:
                os._exit(code)
        end = time.monotonic() + SECONDS
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                return 3, "took too long"
            time.sleep(0.01)
        failed = [line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        return os.waitstatus_to_exitcode(done[1]), failed[0].partition("::")[2].partition(" - ")[0] if failed else ""


def main() -> int:
    """Judge them all and print the table."""
    import hypothesis
    import numpy
    import pytest
    import torch

    assert all((hypothesis, numpy, pytest, torch))  # imported once, here, and inherited by every fork
    chosen = [m for m in MUTANTS if all(word in str(m) for word in sys.argv[1:])]
    for file, old, _ in chosen:
        found = (ROOT / "src" / "fedhyper" / f"{file}.py").read_text().count(old)
        if found != 1:
            sys.exit(f"{file}.py has {found} times {old!r}: bring the mutant up to date")
    start = time.monotonic()
    code, failed = judge(None)
    if code != 0:
        sys.exit(f"the suite fails without any mutant: {failed or code}")
    survivors = 0
    for number, mutant in enumerate(chosen, start=1):
        code, failed = judge(mutant)
        survivors += code != 1  # pytest: 1 says tests failed, 0 all passed, anything else is an accident
        verdict = f"killed by {failed[:60]}" if code == 1 else f"SURVIVED (exit code {code})"
        print(
            f"{number:3} {mutant.file:10} {mutant.old.strip()[:42]:42} -> {mutant.new.strip()[:42]:42} {verdict}",
            flush=True,
        )
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
