"""Run directories made up for tests: their numbers are drawn from formulas, not measured by anything."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

ADAPTS = {
    "fedhyper": (True, True),
    "fedhyper-g": (True, False),
    "fedhyper-sl": (False, True),
    "fedhyper-g+cl": (True, True),
}


def write_run(path: Path, **settings: Any) -> Path:
    """A finished run at ``path``; ``settings`` override config keys, ``partition`` its table, ``extra`` adds keys."""
    rejected = settings.pop("rejected", False)
    clients_measured = settings.pop("clients_measured", False)
    config: dict[str, Any] = {
        "task": "fmnist", "model": "cnn", "method": "fedavg", "rounds": 50, "clients": 30, "clients_per_round": 10,
        "local_epochs": 1, "local_steps": 0, "batch_size": 64, "local_lr": 0.01, "global_lr": 1.0, "seed": 0,
        "weighting": "examples", "sampling": "uniform", "eval_every": 1, "checkpoint_every": 10,
        "target_accuracy": 0.7, "partition": {"kind": "dirichlet", "concentration": 0.5},
    } | settings  # fmt: skip
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(config))
    noise = random.Random(f"{config['seed']} {config['method']} {config['local_lr']} {config['global_lr']}")
    records = list(_records(config, noise, rejected, clients_measured))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    hit = next((r["round"] for r in records if (r["accuracy"] or 0) >= config["target_accuracy"]), None)
    accuracies = [r["accuracy"] for r in records if r["accuracy"] is not None]
    seconds = [r["seconds_train"] + r["seconds_aggregate"] + r["seconds_evaluate"] for r in records]
    write_json(
        path / "summary.json",
        {
            "status": "finished", "rounds": len(records), "final_accuracy": accuracies[-1],
            "best_accuracy": max(accuracies), "final_loss": records[-1]["test_loss"],
            "target_accuracy": config["target_accuracy"], "rounds_to_target": hit,
            "seconds_to_target": sum(seconds[:hit]) if hit else None, "seconds": sum(seconds),
            "bytes_up": sum(r["bytes_up"] for r in records), "bytes_down": sum(r["bytes_down"] for r in records),
            "weights_sha256": hashlib.sha256(path.name.encode()).hexdigest(),
        },
    )  # fmt: skip
    write_json(
        path / "env.json",
        {
            "fedhyper": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6", "platform": "Linux",
            "machine": "x86_64", "cpu_count": 2, "git": "7673bf1", "started": "2026-01-01T12:00:00+00:00",
        },
    )  # fmt: skip
    write_json(path / "partition.json", fake_partition(config["clients"], seed=config["seed"]))
    return path


def fake_partition(clients: int = 30, classes: int = 10, seed: int = 0) -> dict[str, Any]:
    """A partition skewed by class, as a Dirichlet of concentration 0.5 would skew it."""
    draw = random.Random(f"partition {seed} {clients}")
    counts = [[0] * classes for _ in range(clients)]
    for label in range(classes):
        shares = [draw.gammavariate(0.5, 1.0) for _ in range(clients)]
        for client, share in enumerate(shares):
            counts[client][label] = round(6000 * share / sum(shares))
    sizes = [sum(row) for row in counts]
    digest = hashlib.sha256(repr(counts).encode()).hexdigest()
    return {"kind": "dirichlet", "sha256": digest, "clients": clients, "sizes": sizes, "class_counts": counts}


def _records(config: dict[str, Any], noise: random.Random, rejected: bool, clients_measured: bool) -> Any:
    moves_global, moves_local = ADAPTS.get(config["method"], (False, False))
    global_lr, local_lr = config["global_lr"], config["local_lr"]
    progress = 0.0
    for t in range(1, config["rounds"] + 1):
        best = 0.03
        # Learning is fastest near a product of the rates of 0.03 and falls off on both sides of it.
        off = abs(math.log10(global_lr * local_lr / best))
        progress += max(0.02, 1.3 - 0.55 * off)
        blown = global_lr * local_lr > 1.0
        accuracy = 0.1 if blown else 0.1 + 0.78 * (1 - math.exp(-progress / 9)) + noise.gauss(0, 0.008)
        cosine = None if t == 1 else max(-1.0, min(1.0, 0.6 - 0.012 * t + noise.gauss(0, 0.12)))
        if t > 1 and cosine is not None:
            pull = math.exp(0.25 * (1 if global_lr * local_lr < best else -1) + 0.05 * noise.gauss(0, 1))
            if moves_global:
                global_lr = min(max(global_lr * pull, config["global_lr"] / 3), config["global_lr"] * 3)
            if moves_local:
                local_lr = min(max(local_lr * pull, config["local_lr"] / 10), config["local_lr"] * 10)
        spread = 1.4 if "cl" in config["method"] else 1.0
        evaluated = t % config["eval_every"] == 0 or t == config["rounds"]
        bad = rejected and t % 9 == 0
        measured = [min(1.0, max(0.0, accuracy + noise.gauss(0, 0.07))) for _ in range(config["clients"])]
        yield {
            "round": t, "global_lr": global_lr, "local_lr": local_lr, "local_lr_min": local_lr / spread,
            "local_lr_max": local_lr * spread,
            "hypergrad": None if cosine is None or not (moves_global or moves_local) else cosine * 0.02,
            "cosine": cosine, "update_norm": 1.5 * math.exp(-t / 40),
            "train_loss": 2.3 * math.exp(-progress / 12) + 0.15 + abs(noise.gauss(0, 0.02)),
            "test_loss": 2.3 * math.exp(-progress / 11) + 0.3 + abs(noise.gauss(0, 0.02)) if evaluated else None,
            "accuracy": min(accuracy, 0.99) if evaluated else None,
            "seconds_train": 0.9 + noise.random() * 0.1, "seconds_aggregate": 0.012,
            "seconds_evaluate": 0.15 if evaluated else 0.0, "bytes_up": 1_163_000, "bytes_down": 1_163_000,
            "clients_used": 10 - 2 * bad, "clients_rejected": 2 * bad,
            "reject_reasons": {"not finite": 1, "norm too large": 1} if bad else {}, "rollback": rejected and t == 18,
        } | ({"client_accuracy": measured} if clients_measured and evaluated else {})  # fmt: skip


def to_toml(config: dict[str, Any]) -> str:
    """Flat keys first, then tables: the shape `config.toml` has."""
    tables = {key: value for key, value in config.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in config.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    # JSON's strings, numbers and booleans are TOML's too, but TOML wants DEL escaped and no half of a pair.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def write_comparison(root: Path, seeds: int = 3, **settings: Any) -> Path:
    for method in ("fedavg", "fedexp", "fedhyper-g", "fedhyper-g+cl"):
        for seed in range(seeds):
            odd = {"rejected": method == "fedexp", "clients_measured": True}
            write_run(root / f"{method}-{seed}", method=method, seed=seed, local_lr=0.003, **odd, **settings)
    return root


def write_sweep(root: Path, rounds: int = 50) -> Path:
    """75 cells: three methods on a grid of five local and five global rates."""
    root.mkdir(parents=True)
    (root / "sweep.toml").write_text('grid = "local_lr global_lr method"\n')
    for method in ("fedavg", "fedexp", "fedhyper"):
        for local_lr in (0.0001, 0.001, 0.01, 0.1, 1.0):
            for global_lr in (0.1, 0.5, 1.0, 2.0, 10.0):
                name = f"method={method},local_lr={local_lr},global_lr={global_lr}"
                write_run(root / "cells" / name, method=method, local_lr=local_lr, global_lr=global_lr, rounds=rounds)
    return root


_CODE = "window.pwned=1"
HOSTILE = (
    f"<script>{_CODE}</script>", f"</script><script>{_CODE}</script>", f"<img src=x onerror={_CODE}>",
    f"'><img src=x onerror={_CODE}>", f'"><svg onload={_CODE}>', f"<svg><script>{_CODE}</script></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>", f"<body onload={_CODE}>", f"<details open ontoggle={_CODE}>",
    f"<a href=javascript:{_CODE}>x</a>", f"javascript:{_CODE}", f"data:text/html,<script>{_CODE}</script>",
    "<style>@import 'http://evil.test/x.css'</style>", "<link rel=stylesheet href=http://evil.test/x.css>",
    "<img src=http://evil.test/x.png>", "<base href=http://evil.test/>", "<meta http-equiv=refresh content=0;url=http://evil.test>",
    "<!--", "-->", "<![CDATA[", "]]>", "</title>", "</style>", "</textarea>",
    f"<noscript><p title='</noscript><img src=x onerror={_CODE}>'>",
    "\\", "\\u003cscript\\u003e", "\\x3cscript\\x3e", "';" + _CODE + ";//", '";' + _CODE + ';//', "`${" + _CODE + "}`",
    "${" + _CODE + "}", "{{constructor.constructor('" + _CODE + "')()}}", "{% raw %}",
    "%3Cscript%3E", "&lt;script&gt;", "&#60;script&#62;",
    "datum.s", "datum['s']", "event.view", f"'+({_CODE})+'", "a.b.c", "a[0]['b']", "__proto__",
    "constructor", "toString", "hasOwnProperty",
    "prototype", "null", "undefined", "NaN", "[object Object]", "=cmd|' /C calc'!A0", "+1+1", "-1-1",
    "@SUM(A1)", "|pipe|",
    "$\\alpha$ & # _ ^ ~",
    "line\nbreak\r\ttab", "\u2028\u2029\u202e\ufeff\x00\x1b[31m", "😀" * 60,
)  # fmt: skip


def write_hostile(path: Path, text: str, *, one_problem: bool = False, **settings: Any) -> Path:
    """A run with ``text`` in every place that holds a string, key and value, the directory's name included.

    With ``one_problem`` task, model and partition are ordinary, so that several such runs share their charts.
    """
    name = "".join(c for c in text if c not in "/\x00").encode()[:120].decode("utf-8", "ignore")
    fields = {"task": text, "model": text, "method": text, "weighting": text, "sampling": text} | settings
    fields |= {text: text, "partition": {"kind": text, text: text}}
    if one_problem:
        fields |= {"task": "fmnist", "model": "cnn", "partition": {"kind": "iid"}}
    run = write_run(
        path / (name if name.strip(".") else "x"), **fields, rounds=6, clients=4, clients_measured=True, rejected=True
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in lines:
        record |= {"clients_rejected": 2, "reject_reasons": {text: 2}, text: text, "note": text, "rollback": text}
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    for file in ("summary.json", "env.json", "partition.json"):
        content = json.loads((run / file).read_text()) | {text: text}
        for key in (
            "weights_sha256",
            "fedhyper",
            "python",
            "torch",
            "platform",
            "machine",
            "git",
            "started",
            "kind",
            "sha256",
        ):
            content |= {key: text} if key in content else {}
        write_json(run / file, content)
    return run
