"""Run as a script by test_crash.py: a process that forks runs, ends them at random instants, and compares the bits.

Torch is imported once and never used before a fork. Only processes that were forked here are ever signalled.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedhyper.errors import UserError
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.running import build
from fedhyper.lab.running.progress import Record, Silent
from fedhyper.lab.running.run import Run, run_experiment


def config(method: str, every: int) -> Config:
    return make_config(
        {
            "task": "digits",
            "method": method,
            "rounds": 12,
            "clients": 6,
            "clients_per_round": 4,
            "batch_size": 16,
            "eval_every": 2,
            "checkpoint_every": every,
        }
    )


class Pace(Silent):
    """A round of this size takes a millisecond; a little longer, and kills fall between all kinds of things."""

    def round(self, run: Run, record: Record) -> None:
        time.sleep(0.004)


def fork(settings: Config, out: Path, workers: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        run_experiment(settings, out, resume=out.exists(), workers=workers, display=Pace())
        code = 0
    except UserError as error:
        code = error.exit_code
        if code < 128:
            print(error, file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(settings: Config, out: Path, workers: int) -> int:
    """Run without disturbance; the exit code comes back."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(settings, out, workers), 0)[1])


def fingerprint(out: Path) -> str:
    summary = json.loads((out / "summary.json").read_bytes())
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]
    timeless = [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in records]
    whole = json.dumps([summary["weights_sha256"], summary["status"], timeless]).encode()
    return hashlib.sha256(whole + (out / "weights.safetensors").read_bytes()).hexdigest()


def ended(child: int, number: int, seconds: float) -> tuple[int, float]:
    """Signal ``child`` after some time; its exit code, and how long it took to end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), 0.0
        time.sleep(0.002)
    os.kill(child, number)
    started = time.monotonic()
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), time.monotonic() - started


def main(root: Path, kind: str, trials: int, seed: int) -> None:
    rng = random.Random(seed)
    build.load_task("digits", 0)
    methods = ["fedhyper", "fedhyper-g+cl", "fedadam", "fedavg"]
    expected: dict[tuple[str, int], str] = {}
    took = 0.5
    for i, method in enumerate(methods[: max(1, min(trials, len(methods)))]):
        started = time.monotonic()
        assert finish(config(method, 3), root / f"whole-{i}", 1) == 0
        took = time.monotonic() - started
        expected[method, 0] = fingerprint(root / f"whole-{i}")
    result: dict[str, Any] = {"seed": seed, "trials": trials, "hits": 0, "identical": 0, "codes": [], "slowest": 0.0}
    for trial in range(trials):
        method, every = methods[trial % len(methods)], rng.choice([0, 1, 3])
        settings, out, workers = config(method, every), root / f"trial-{trial}", rng.choice([1, 2])
        for _ in range(3 if kind == "kill" else 1):
            number = signal.SIGKILL if kind == "kill" else rng.choice([signal.SIGINT, signal.SIGTERM])
            child = fork(settings, out, workers)
            code, seconds = ended(child, number, rng.uniform(0, took))
            result["slowest"] = max(result["slowest"], seconds)
            result["hits"] += code != 0
            result["codes"].append([int(number), code])
            if code == 0:
                break
        assert finish(settings, out, workers) == 0, f"trial {trial} cannot be continued"
        left = [path.name for path in out.rglob("*.tmp")]
        assert not left, left
        result["identical"] += fingerprint(out) == expected[method, 0]
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
