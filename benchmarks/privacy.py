"""Accuracy against ε: MNIST, softmax regression, 1,000 clients of which about 100 take part in a round.

    python benchmarks/privacy.py --smoke              digits, a minute
    python benchmarks/privacy.py                      16 runs, resumable; needs `fedhyper data fetch mnist`
    python benchmarks/privacy.py --tables             only print the table from the runs that are there

fedavg is tuned (its best of three local rates, chosen by test accuracy, which favours it); fedhyper is as it comes. The
noise is such that the run has spent its ε after the last round. One seed; a score is the accuracy of the last round.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.build import make_simulation
from fedhyper.privacy import Privacy

EPSILONS = (1.0, 3.0, 8.0, math.inf)
RATES = (0.01, 0.03, 0.1)  # fedavg's
DELTA = 1e-4


def noise_for(epsilon: float, rounds: int, share: float) -> float:
    """The least noise that spends no more than ``epsilon``, to a thousandth."""
    low, high = 0.05, 100.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        spent = Privacy(noise=middle, delta=DELTA).epsilon(rounds, share)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


def run(method: str, rate: float, epsilon: float, smoke: bool) -> dict[str, Any]:
    """One run's accuracy, noise, and first and last local rate."""
    clients, asked, rounds = (100, 40, 4) if smoke else (1000, 100, 50)
    values: dict[str, Any] = {
        **{"task": "digits" if smoke else "mnist", "model": "logistic", "method": method, "local_lr": rate},
        **{"clients": clients, "clients_per_round": asked, "rounds": rounds, "batch_size": 10, "weighting": "uniform"},
        "partition": {"kind": "dirichlet", "concentration": 0.5},
    }
    noise = 0.0
    if epsilon < math.inf:
        noise = noise_for(epsilon, rounds + (method == "fedhyper"), asked / clients)  # its start counts votes
        values["privacy"] = {"noise": noise, "delta": DELTA}
    simulation = make_simulation(make_config(values, "privacy"), workers=1)
    records = [simulation.run_round(evaluate=t == rounds - 1) for t in range(rounds)]
    simulation.close()
    rates = [record["local_lr"] for record in records]
    return {"accuracy": records[-1]["accuracy"], "noise": noise, "rates": [rates[0], rates[-1]]}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/privacy"))
    parser.add_argument("--smoke", action="store_true", help="digits, 4 rounds")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / ("smoke.jsonl" if options.smoke else "runs.jsonl")
    lines = file.read_text().splitlines() if file.exists() else []
    done = {tuple(row["case"]): row["result"] for row in map(json.loads, lines)}
    cases = [("fedhyper", 0.01, e) for e in EPSILONS] + [("fedavg", r, e) for r in reversed(RATES) for e in EPSILONS]
    for case in () if options.tables else cases:
        if case not in done:
            done[case] = run(*case, options.smoke)
            with file.open("a") as out:
                print(json.dumps({"case": case, "result": done[case]}), file=out)
    print("| ε | noise z | fedavg, tuned | its rate | fedhyper, untuned | its last rate |\n|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        ours = done.get(("fedhyper", 0.01, epsilon))
        theirs = [(done[key]["accuracy"], key[1]) for key in done if key[0] == "fedavg" and key[2] == epsilon]
        if ours is None or not theirs:
            continue
        best, rate = max(theirs)
        name = "∞" if math.isinf(epsilon) else f"{epsilon:g}"
        print(
            f"| {name} | {ours['noise']:.2f} | {100 * best:.1f} | {rate:g} "
            f"| {100 * ours['accuracy']:.1f} | {ours['rates'][1]:.2g} |"
        )


if __name__ == "__main__":
    main()
