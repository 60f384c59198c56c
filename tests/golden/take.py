"""Weight hashes of every method, through the command line: ``python tests/golden/take.py FILE``.

Taken before a change of structure and again after it: the same hashes say that not a bit of any result has moved. They
hold for one machine and one torch, so the file says which. ``tests/test_golden.py`` compares where both are the same.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# method, and what differs from experiments/digits.toml; a few more settings for what methods do not reach
BASES = (
    *("fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-cl", "fedhyper-cl-released", "fedhyper-g+cl", "fedhyper-g+sl"),
    *("fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "fedexp", "decay-g", "decay-sl", "local-adam"),
    *("fedprox", "delta-sgd", "fedsps"),
)
MORE = [
    *(
        [base, f"model={model}"]
        for model in ("mlp", "cnn")
        for base in ("fedhyper", "fedhyper-g+cl", "local-adam", "fedsps")
    ),
    *([base, "engine=sequential"] for base in BASES),
    ["fedhyper", "rounds=30", "local_lr=1e-5"],
    ["fedhyper", "rounds=30", "local_lr=10.0"],
    ["fedhyper", "rounds=30", "partition.concentration=0.1", "clients_per_round=3"],
    ["fedhyper+momentum", "rounds=20"],
    ["fedhyper-cl", "carry=true"],
    ["fedavg", "norm_cap=1.5"],
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
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {"torch": torch.__version__, "cpu": model.partition(":")[2].strip(), "machine": platform.machine()}


def digest(method: str, overrides: list[str]) -> str | None:
    """SHA-256 of the weights and the test loss after the run's last round; None when the run fails."""
    rounds = [] if any(o.startswith("rounds=") for o in overrides) else ["rounds=4"]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fedhyper.lab.cli", "run", "experiments/digits.toml", f"method={method}"]
        command += [*rounds, "eval_every=100", *overrides, "--out", f"{out}/run", "--quiet", "--workers", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        summary = Path(out, "run", "summary.json")
        if done.returncode not in (0, 3) or not summary.is_file():
            return None
        end = json.loads(summary.read_text())
        return f"{end['weights_sha256']} {end['final_loss']!r}"  # the loss is of the mean of the last rounds' weights


def main() -> None:
    hashes = {" ".join(run): digest(run[0], run[1:]) for run in settings()}
    Path(sys.argv[1]).write_text(json.dumps({"machine": machine(), "runs": hashes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
