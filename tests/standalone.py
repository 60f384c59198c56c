"""Every rule of layer 1 on plain lists and numbers. Prints the numbers as JSON; imports nothing but fedhyper.

Run by test_standalone.py here and in an environment that has neither NumPy nor torch.
"""

from __future__ import annotations

import json
import math
from typing import Any

import fedhyper
from fedhyper import guard

VECTORS = [[math.sin(7 * t + i) / 4 for i in range(5)] for t in range(8)]
OTHERS = [[math.cos(5 * t + i) / 4 for i in range(5)] for t in range(8)]


def rates(rule: Any) -> list[float]:
    """The rate after each of the vectors."""
    scheduler, out = fedhyper.Scheduler(rule), []
    for vector, other in zip(VECTORS, OTHERS, strict=True):
        seen = {"grad": vector, "delta": other if "grad" in rule.requires else vector, "sq_norm": 0.9}
        out.append(scheduler.step(*[seen[name] for name in rule.requires]))
    assert scheduler.get_last_lr() == out[-1:]
    again = fedhyper.Scheduler(rule)
    again.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert again.lr == scheduler.lr
    return out


def numbers() -> dict[str, Any]:
    """What every public name of layer 1 gives."""
    found: dict[str, Any] = {}
    for hypergrad in ("inner", "cosine"):
        for apply in ("add", "relative", "log"):
            settings: dict[str, Any] = {"hypergrad": hypergrad, "apply": apply}
            for rule in (
                fedhyper.FedHyperG(**settings),
                fedhyper.FedHyperSL(lr=0.1, **settings),
                *[
                    fedhyper.FedHyperCL(lr=0.1, local_steps=3, global_term=term, **settings)
                    for term in ("add", "sign", "off")
                ],
            ):
                found[repr(rule)] = rates(rule)
    for baseline in (fedhyper.Constant(), fedhyper.Decay(), fedhyper.FedExP()):
        found[repr(baseline)] = rates(baseline)
    for optimizer in (
        fedhyper.Average(),
        fedhyper.Momentum(),
        fedhyper.Adagrad(),
        fedhyper.Adam(),
        fedhyper.Yogi(),
    ):
        state, out = optimizer.init(), []
        for vector in VECTORS:
            direction, state = optimizer.update(state, vector[0])
            out.append(direction)
        found[repr(optimizer)] = out
    plans = (
        fedhyper.Pair(global_rule=fedhyper.FedHyperG()),
        fedhyper.Pair(average=fedhyper.LastTwo()),
        fedhyper.auto(),
    )
    for i, plan in enumerate(plans):
        server, out = fedhyper.Server(VECTORS[0], plan), []
        for t, vector in enumerate(VECTORS):
            decision = server.step(vector, loss=3.0 if t == 5 else 1.0, sq_norm=0.9)
            out.append((decision, server.weights, server.averaged))
        found[f"server {i}"] = out
        again = fedhyper.Server(VECTORS[0], plan)
        again.load_state_dict(server.state_dict())
        assert again.weights == server.weights
    found["theorem1"] = fedhyper.theorem1(
        global_bound=3,
        local_bound=10,
        variance=0.1,
        dissimilarity=0.2,
        clients_per_round=10,
        local_steps=5,
        rounds=50,
    )
    found["guard"] = [guard.clamp(math.nan, 0, 1, keep=0.5), guard.fair_weights([1.0, 2.0, 90.0], [1.0, 1.0, 1.0])]
    return found


if __name__ == "__main__":
    missing = []
    for name in ("numpy", "torch"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    print(json.dumps({"missing": missing, "file": fedhyper.__file__, "numbers": numbers()}))
