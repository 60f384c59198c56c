"""``fedhyper`` against tuned FedAvg and FedAvgM in settings drawn at random: what nobody chose, nobody fitted to.

    python benchmarks/random_settings.py --first 0 --count 37 --out build/random.jsonl

Setting k is a function of k alone: task, model, clients, local work, rounds, split. From k = 1000 on the clients'
optimizer is drawn too. The rivals' local rate climbs a grid √10 apart until two in a row are worse, on either side, and
is chosen on the test set; their global rate is 1. A score is the mean of the last three evaluations, in percent. What
is in the file already is not run again; settings with real images need FEDHYPER_DATA.

    python benchmarks/random_settings.py --first 0 --count 37 --served --out build/served.jsonl

has ``fedhyper`` where its clients train once a round and nothing can be looked ahead at, as in Flower: ``Server`` over
the same clients, which report their loss before they train, over all their data, and the mean over their steps. With
--climbing each tries several rates in the start, as with ``fedhyper.flower.climbing_mod``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from fedhyper import Server
from fedhyper.arrays import inner
from fedhyper.automatic.ladder import TRIED, Ladder
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.build import make_simulation
from fedhyper.server import summed_up
from fedhyper.sim.engines.base import ClientTask, Engine, Indices, Reply, Sent
from fedhyper.sim.rng import generator

RIVALS = ("fedavg", "fedavgm")
SERVED = "fedhyper, clients that train once"
CLIMBING = "fedhyper, clients that climb in the start"
STILL = 1e-30  # a rate at which nothing moves
OPTIMIZERS_FROM = 1000


def draw(k: int) -> dict[str, Any]:
    """Setting number ``k``, as the keys of a config. The order of the draws is part of it."""
    r = random.Random(k)
    task = r.choice(["digits"] * 5 + ["mnist"] * 2 + ["fmnist"] * 3)
    digits = task == "digits"
    drawn: dict[str, Any] = {"task": task, "model": r.choice(["mlp", "mlp", "logistic"])}
    drawn["clients"] = r.choice([4, 10, 30, 100] if digits else [10, 30, 100, 300])
    drawn["clients_per_round"] = min(drawn["clients"], r.choice([1, 2, 3, 5, 10, 10, 20, 50]))
    drawn["local_epochs"] = r.choice([1, 1, 2, 5, 10])
    drawn["batch_size"] = r.choice([4, 10, 10, 32, 64])
    drawn["rounds"] = r.choice([3, 10, 25, 60, 60, 150])
    if not digits:
        drawn["subset"] = r.choice([3000, 8000])
        drawn["batch_size"] = r.choice([10, 32, 64])
        drawn["rounds"] = r.choice([3, 10, 25, 50])
    split: dict[str, Any] = {"kind": r.choice(["iid", "dirichlet", "dirichlet", "dirichlet", "shards"])}
    if split["kind"] == "dirichlet":
        split["concentration"] = r.choice([0.05, 0.1, 0.3, 1.0])
    if split["kind"] == "shards":
        split["shards_per_client"] = r.choice([1, 2, 3])
    drawn |= {"partition": split, "seed": 100 + k}
    if drawn["model"] == "mlp":
        drawn["model_options"] = {"hidden": r.choice([50, 200]), "depth": r.choice([1, 1, 2, 3])}
    drawn["weighting"] = r.choice(["examples", "uniform"])
    drawn["eval_every"] = max(1, drawn["rounds"] // 12)
    if k >= OPTIMIZERS_FROM:
        drawn["local_optimizer"] = r.choice(["sgd"] * 3 + ["momentum", "nesterov", "adam", "adamw"])
        if r.random() < 0.15:
            drawn["clip_norm"] = 1.0
        if r.random() < 0.15:
            drawn["weight_decay"] = 1e-3
    return drawn


def score(setting: dict[str, Any], method: str, **keys: Any) -> float:
    """Percent: the mean of the last three evaluations of one run."""
    config = make_config({**setting, **keys, "method": method})
    simulation = make_simulation(config, workers=1)
    seen = []
    try:
        for t in range(1, config.rounds + 1):
            due = t % config.eval_every == 0 or t > config.rounds - 3
            accuracy = simulation.run_round(evaluate=due)["accuracy"]
            if accuracy is not None:
                seen.append(100 * accuracy)
    finally:
        simulation.close()
    return mean(seen[-3:])


def served(setting: dict[str, Any], *, climbing: bool = False) -> float:
    """The same score for ``fedhyper.Server`` over the simulator's clients, in an order of chance."""
    config = make_config({**setting, "method": "fedhyper"})
    simulation = make_simulation(config, workers=1)
    engine, start, seen = simulation.engine, simulation.server_state.now, []
    server = Server(start.weights, rounds=config.rounds)
    counters = torch.empty(0, dtype=torch.int64)
    try:
        for t in range(config.rounds):
            tasks = simulation.cohorts.tasks(t)
            tasks = [tasks[i] for i in generator(config.seed, "served", t).permutation(len(tasks))]
            sent = Sent(server.weights, start.statistics, counters, STILL, None, len(tasks))
            whole = [one._replace(batches=[own(one)], width=one.examples) for one in tasks]
            before = [reply.first_loss for reply in engine.train(whole, sent)]
            weigh = config.weighting != "uniform"
            if climbing and server.state.climbs:
                _climb(server, engine, tasks, sent, before, weigh=weigh)
            else:
                _train_once(server, engine, tasks, sent, before, weigh=weigh)
            if (t + 1) % config.eval_every == 0 or t + 1 > config.rounds - 3:
                kept = sent._replace(weights=server.averaged)
                seen.append(100 * engine.evaluate(kept)[1])
    finally:
        simulation.close()
    return mean(seen[-3:])


def _train_once(
    server: Server, engine: Engine, tasks: list[ClientTask], sent: Sent, before: list[float], *, weigh: bool
) -> None:
    rates = server.rates(len(tasks))
    replies: dict[int, Reply] = {}
    for rate in sorted(set(rates)):
        some = [i for i, other in enumerate(rates) if other == rate]
        answers = engine.train([tasks[i] for i in some], sent._replace(local_lr=rate))
        replies |= dict(zip(some, answers, strict=True))
    answers = [replies[i] for i in range(len(tasks))]
    server.step(
        [reply.delta for reply in answers],
        loss=before,
        train_loss=[reply.mean_loss for reply in answers],
        examples=[reply.examples for reply in answers] if weigh else None,
    )


def _climb(
    server: Server, engine: Engine, tasks: list[ClientTask], sent: Sent, before: list[float], *, weigh: bool
) -> None:
    found = [_best(server.loop.plan.ladder or Ladder(), engine, task, sent) for task in tasks]
    told = [i for i, (_, vote, _) in enumerate(found) if vote is not None]
    if not told:  # no rate makes a difference to anybody
        server.step([reply.delta for reply, _, _ in found], loss=before)
        return
    report = summed_up(
        [found[i][0].delta for i in told],
        [found[i][0].examples for i in told] if weigh else None,
        range(len(told)),
        None,
        server.norm_cap,
    )._replace(losses=tuple(before[i] for i in told))
    votes = tuple((vote, gain) for _, vote, gain in found if vote is not None)
    server.state, _ = server.loop.update(server.state, report._replace(votes=votes, climbed=True))


def _best(ladder: Ladder, engine: Engine, task: ClientTask, sent: Sent) -> tuple[Reply, int | None, float]:
    """A client's reply at the rate that it finds best, its vote, and what that gained."""

    def trained(rate: float) -> tuple[Reply, float]:
        [reply] = engine.train([task], sent._replace(local_lr=rate))
        usable = math.isfinite(float(inner(reply.delta, reply.delta)))
        if len(task.batches) > 1 or not usable:
            return reply, reply.mean_loss if usable else math.inf
        [after] = engine.train([task], sent._replace(weights=sent.weights - reply.delta))
        return reply, (reply.mean_loss + after.first_loss) / 2

    best, _ = trained(TRIED)
    moved, length = (math.sqrt(float(inner(array, array))) for array in (best.delta, sent.weights))
    start, scores = ladder.start(moved, length), dict[int, float]()
    while (rung := ladder.next(scores, start)) is not None:
        reply, score = trained(ladder.rate(rung)) if ladder.rate(rung) <= 10 else (best, math.inf)
        best = reply if score < min(scores.values(), default=math.inf) else best
        scores[rung] = score
    return best, ladder.vote(scores), ladder.gained(scores)


def own(task: ClientTask) -> Indices:
    """All examples of a client, in the order of the first pass."""
    steps = -(-task.examples // task.width)
    return np.concatenate(list(islice(task.batches, steps)))


def tuned(run: Callable[[float], float], begin: int) -> tuple[float, float]:
    """The best score and its rate: the grid is climbed from √10^``begin`` until two in a row are worse."""
    got = {begin: run(10 ** (begin / 2))}
    for way in (1, -1):
        rung, worse = max(got, key=lambda j: got[j]), 0
        while worse < 2 and -12 <= rung <= 3:
            rung += way
            if rung in got:
                continue
            got[rung] = run(10 ** (rung / 2))
            worse = worse + 1 if got[rung] < max(got.values()) else 0
    best = max(got, key=lambda j: got[j])
    return got[best], 10 ** (best / 2)


def judge(k: int, method: str) -> dict[str, Any]:
    """One method in setting ``k``."""
    setting = draw(k)
    if method in (SERVED, CLIMBING):
        return {"k": k, "method": method, "score": served(setting, climbing=method == CLIMBING)}
    if method not in RIVALS:
        return {"k": k, "method": method, "score": score(setting, method)}
    begin = -5 if setting.get("local_optimizer", "").startswith("adam") else -2
    best, rate = tuned(lambda lr: score(setting, method, local_lr=lr, norm_cap=0.0), begin)
    return {"k": k, "method": method, "score": best, "local_lr": rate}


def described(k: int) -> str:
    """Setting ``k`` in a few words."""
    s = draw(k)
    options = s.get("model_options")
    model = s["model"] + (f" {options['depth']} × {options['hidden']}" if options else "")
    split = " ".join(str(value) for value in s["partition"].values())
    return (
        f"{s['task']}, {model}, {s['clients_per_round']} of {s['clients']}, {s['rounds']} × {s['local_epochs']}, "
        f"{s['batch_size']}, {split}" + (f", {s['local_optimizer']}" if "local_optimizer" in s else "")
    )


def table(lines: list[dict[str, Any]], method: str) -> str:
    """A row a setting, worst first, and what it comes to."""
    scores = {(line["k"], line["method"]): line["score"] for line in lines}
    whole = [k for k, name in scores if name == method and all((k, rival) in scores for rival in RIVALS)]
    best = {k: max(scores[k, rival] for rival in RIVALS) for k in whole}
    gaps = {k: scores[k, method] - best[k] for k in whole}
    rows = [
        f"| {k} | {described(k)} | {best[k]:.1f} | {scores[k, method]:.1f} |"
        for k in sorted(whole, key=lambda k: gaps[k])
    ]
    ends = ""
    if gaps:
        below = sum(gap < -3 for gap in gaps.values())
        ends = (
            f"\n{method} against the better rival, {len(gaps)} settings: mean {mean(gaps.values()):+.1f}, "
            f"median {median(gaps.values()):+.1f}, worst {min(gaps.values()):+.1f}; more than 3 below: {below}"
        )
    return "\n".join([f"| no. | setting | best of {', '.join(RIVALS)} | {method} |", "|---|---|---|---|", *rows, ends])


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first setting")
    parser.add_argument("--count", type=int, default=37, help="how many settings")
    parser.add_argument("--rounds", type=int, default=1000, help="only the settings with at most so many rounds")
    parser.add_argument("--method", default="fedhyper", help="the method that is judged")
    parser.add_argument("--served", action="store_true", help="fedhyper where clients train once a round")
    parser.add_argument("--climbing", action="store_true", help="with --served: they try several rates in the start")
    parser.add_argument("--out", type=Path, default=Path("build/random.jsonl"), help="results, a line each")
    chosen = parser.parse_args()
    if chosen.climbing and not chosen.served:
        parser.error("--climbing goes with --served: the simulator's clients climb anyway")
    chosen.method = CLIMBING if chosen.climbing else SERVED if chosen.served else chosen.method
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    known = {(line["k"], line["method"]) for line in lines}
    asked = [k for k in range(chosen.first, chosen.first + chosen.count) if draw(k)["rounds"] <= chosen.rounds]
    for k in asked:
        for method in (chosen.method, *RIVALS):
            if (k, method) not in known:
                lines.append(judge(k, method))
                with chosen.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    print(table([line for line in lines if line["k"] in asked], chosen.method))


if __name__ == "__main__":
    main()
