"""From the command to the end of round 1, and what evaluation, logging and checkpoints cost: real ``fedhyper run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "W1": ["task=fmnist", "model=cnn", "method=fedavg", "clients=100", "clients_per_round=10"],
    "smoke": ["task=digits", "method=fedavg", "clients=20", "clients_per_round=4", "batch_size=10"],
}


def _start(name: str, out: Path, rounds: int) -> subprocess.Popen[bytes]:
    config = out.parent / f"{name}.toml"
    config.write_text("")
    command = [sys.executable, "-m", "fedhyper.lab.cli", "run", str(config), *SETTINGS[name], f"rounds={rounds}"]
    command += ["--out", str(out), "--quiet", "--no-report"]
    script = Path(sys.executable).with_name("fedhyper")
    if script.exists():
        command[:3] = [str(script)]
    with (out.parent / f"{out.name}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)


def first_round(name: str, out: Path) -> float:
    """Seconds from a fresh process to the first line of metrics.jsonl."""
    started = time.perf_counter()
    process = _start(name, out, rounds=1)
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() not in (None, 0):
            raise RuntimeError((out.parent / f"{out.name}.log").read_text().strip()[-300:])
        time.sleep(0.005)
    seconds = time.perf_counter() - started
    process.wait()
    return seconds


def overhead(name: str, out: Path, rounds: int) -> dict[str, float]:
    """Shares of the time between the first and the last record, at the defaults."""
    process = _start(name, out, rounds)
    metrics, first = out / "metrics.jsonl", 0.0
    while process.poll() is None:
        if not first and metrics.exists() and metrics.stat().st_size:
            first = time.time()
        time.sleep(0.005)
    if process.returncode:
        raise RuntimeError((out.parent / f"{out.name}.log").read_text().strip()[-300:])
    total = metrics.stat().st_mtime - first
    records = [json.loads(line) for line in metrics.read_text().splitlines()][1:]
    training = sum(r["seconds_train"] + r["seconds_aggregate"] for r in records)
    evaluation = sum(r["seconds_evaluate"] for r in records)
    return {
        "rounds": len(records),
        "seconds": total,
        "evaluation": evaluation / total,
        "everything_else": (total - training - evaluation) / total,
        "share": 1 - training / total,
    }
