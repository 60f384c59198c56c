"""Weight hashes of every method, through the command line: ``python tests/golden/take.py FILE``.

Taken before a change of structure and again after it: the same hashes say that not a bit of any result has moved. They
hold for one machine and one torch, so the file says which. ``tests/test_golden.py`` compares where both are the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]

# method, and what differs from experiments/digits.toml; a few more settings for what methods do not reach
BASES = (
    *("fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-cl", "fedhyper-cl-released", "fedhyper-g+cl", "fedhyper-g+sl"),
    *("fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "fedexp", "decay-g", "decay-sl"),
    *("fedprox", "delta-sgd", "fedsps"),
)
MORE = [
    *([base, f"model={model}"] for model in ("mlp", "cnn") for base in ("fedhyper", "fedhyper-g+cl", "fedsps")),
    *([base, "local_optimizer=adam"] for base in ("fedavg", "fedavg+momentum", "fedavg+adam")),
    *(["fedavg", "local_optimizer=adam", more] for more in ("model=mlp", "model=cnn", "engine=sequential")),
    ["fedavg", "local_optimizer=nesterov", "clip_norm=1.0"],
    ["fedhyper", "local_optimizer=momentum"],
    ["fedhyper", "local_optimizer=adamw", "weight_decay=0.01", "model=cnn"],
    *([base, "engine=sequential"] for base in BASES),
    ["fedhyper", "rounds=30", "local_lr=1e-5"],
    ["fedhyper", "rounds=30", "local_lr=10.0"],
    ["fedhyper", "rounds=30", "partition.concentration=0.1", "clients_per_round=3"],
    ["fedhyper+momentum", "rounds=20"],
    ["fedhyper-cl", "carry=true"],
    ["fedavg", "norm_cap=3.0"],
    ["fedhyper", "norm_cap=3.0"],
    ["fedavg", "weighting=uniform", "sampling=size"],
    ["fedavg", "local_steps=7"],
    ["fedavg", "partition.kind=iid"],
    ["fedavg", "partition.kind=shards"],
]


def settings() -> list[list[str]]:
    """Every run: its method and its overrides."""
    names = [base + suffix for base in BASES for suffix in ("", "+momentum", "+adam")]
    return [*([name] for name in names), *MORE]


def machine() -> dict[str, str]:
    """What bits depend on besides the code."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    said = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    # by its name alone a processor of another generation passes for this one, and has other kernels, so other bits
    cpu = ", ".join(f"{key} {said.get(key, '?')}" for key in ("model name", "cpu family", "model", "stepping"))
    return {"torch": torch.__version__, "cpu": cpu, "machine": platform.machine()}


def digest(method: str, overrides: list[str]) -> str | None:
    """SHA-256 of the weights and the test loss after the run's last round; None when the run fails.

    The command line is called in this process: a run is a function of its config, so that one after another in one
    process gives the bits of a process each, and torch is imported once.
    """
    from fedhyper.lab.cli import main as command_line

    rounds = [] if any(o.startswith("rounds=") for o in overrides) else ["rounds=4"]
    with tempfile.TemporaryDirectory() as out:
        arguments = ["run", str(ROOT / "experiments" / "digits.toml"), f"method={method}", *rounds, "eval_every=100"]
        # off unless a run is about it: then a result has the bits it had before it was on by default
        cap = [] if any(o.startswith("norm_cap=") for o in overrides) else ["norm_cap=0"]
        arguments += [*cap, *overrides, "--out", f"{out}/run", "--quiet", "--no-report", "--workers", "1"]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                command_line(arguments)
        except SystemExit as end:
            code = end.code
        except Exception as error:  # a traceback, which no config should end in: said, and no hash
            print(f"{method} {' '.join(overrides)}: {type(error).__name__}: {error}", file=sys.stderr)
            return None
        summary = Path(out, "run", "summary.json")
        if code not in (0, 3) or not summary.is_file():  # 3: the guard ended the training, which has weights, too
            return None
        values = json.loads(summary.read_text())
        # the loss is of the mean of the last rounds' weights
        return f"{values['weights_sha256']} {values['final_loss']!r}"


def take(runs: list[list[str]] | None = None) -> dict[str, Any]:
    """The hashes of these runs (None: all), and the machine they hold for."""
    return {"machine": machine(), "runs": {" ".join(run): digest(run[0], run[1:]) for run in runs or settings()}}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/golden/take.py FILE")
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(json.dumps(take(), indent=1) + "\n")
