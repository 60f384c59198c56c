"""What was found on commit ef922d3, as a person met it: by the command line and Flower's API, so on any commit.

    python tests/found.py [WORD ...]                          today; WORD: only rows with it
    git worktree add /tmp/old ef922d3
    PYTHONPATH=/tmp/old/src python tests/found.py             that commit

A line a row, "holds" or "FAILS", and what was seen; the exit code is the number of rows that fail. test_found.py has it
run on today's code. Each row has a closer test of its own as well: docs/reliability.md.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
Row = tuple[str, Callable[[Path], tuple[bool, str]]]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "FLWR_LOG_LEVEL": "ERROR"}

# Clients: ten of them in Flower, softmax regression on the digits; the largest lies ----------------------------------

ROUNDS = 25


@cache
def digits() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(10) * 0.5, 10)  # a class in each row
    owner = np.array([rng.choice(10, p=shares[label]) for label in y])
    held_out = rng.random(len(y)) < 0.2
    return x / 16.0, y, [np.flatnonzero((owner == client) & ~held_out) for client in range(10)]


def loss_and_gradient(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
    scores = x @ w + b
    scores -= scores.max(1, keepdims=True)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss = float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-30)).mean())
    p[np.arange(len(y)), y] -= 1
    return loss, (x.T @ p / len(y), p.mean(0))


def outcome(attack: Callable[[Any, Any], None] | None, strategy: str = "FedAvg") -> tuple[float, float]:
    """Accuracy of ``FedHyper(strategy())``, where ``attack`` changes one client's replies, and the highest rate."""
    import flwr.serverapp.strategy as flower
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from fedhyper.flower import FedHyper, identify
    from tests.flower_support import LocalGrid, arrays, numbers

    x, y, parts = digits()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        own = parts[int(context.node_config["partition-id"])]
        config, now = message.content["config"], numbers(message.content["arrays"])
        w, b = now["w"].astype(float), now["b"].astype(float)
        first, losses = loss_and_gradient(w, b, x[own], y[own])[0], []
        for batch in np.array_split(
            np.random.default_rng(int(config["server-round"])).permutation(own), len(own) // 10
        ):
            loss, (dw, db) = loss_and_gradient(w, b, x[batch], y[batch])
            losses.append(loss)
            w, b = w - float(config["local-lr"]) * dw, b - float(config["local-lr"]) * db
        said = {"num-examples": len(own), "fedhyper.loss": first, "fedhyper.train-loss": float(np.mean(losses))}
        said["fedhyper.sq-norm"] = float(((w - now["w"]) ** 2).sum() + ((b - now["b"]) ** 2).sum())
        content = {"arrays": arrays(w=w.astype("f4"), b=b.astype("f4")), "metrics": MetricRecord(said)}
        return Message(RecordDict(content), reply_to=message)

    grid = LocalGrid(identify(app), 10)

    def spoil(reply: Message) -> Message:
        if attack is not None:
            attack(reply, grid)
        return reply

    grid.spoil = {int(np.argmax([len(part) for part in parts])): spoil}
    begin: ArrayRecord = arrays(w=np.zeros((64, 10), "f4"), b=np.zeros(10, "f4"))
    hyper = FedHyper(getattr(flower, strategy)(fraction_evaluate=0.0), seed=0, local_lr=0.1)
    found = numbers(hyper.start(grid, begin, num_rounds=ROUNDS).arrays)  # type: ignore[arg-type]
    test = np.setdiff1d(np.arange(len(y)), np.concatenate(parts))
    right = float(((x[test] @ found["w"] + found["b"]).argmax(1) == y[test]).mean())
    return right, max(record["local_lr"] for record in hyper.history)


def said(**named: Any) -> Callable[[Any, Any], None]:
    return lambda reply, grid: reply.content["metrics"].update({k.replace("_", "-"): v for k, v in named.items()})


def loss(value: Callable[[float], float], rounds: range = range(6, 1000)) -> Callable[[Any, Any], None]:
    def attack(reply: Any, grid: Any) -> None:
        metrics = reply.content["metrics"]
        if int(grid.sent[-1].content["config"]["server-round"]) in rounds:
            for key in ("fedhyper.loss", "fedhyper.train-loss"):
                metrics[key] = value(float(metrics[key]))

    return attack


def silent_first(reply: Any, grid: Any) -> None:
    if int(grid.sent[-1].content["config"]["server-round"]) == 1:
        del reply.content["metrics"]["fedhyper.loss"]


def moved(factor: float) -> Callable[[Any, Any], None]:
    def attack(reply: Any, grid: Any) -> None:
        from tests.flower_support import arrays, numbers

        sent, came = numbers(grid.sent[-1].content["arrays"]), numbers(reply.content["arrays"])
        reply.content["arrays"] = arrays(**{k: (sent[k] + factor * (came[k] - sent[k])).astype("f4") for k in sent})

    return attack


def back(reply: Any, grid: Any) -> None:
    from tests.flower_support import arrays, numbers

    asked = [m for m in grid.sent if m.metadata.message_type == "train"]
    rounds = {int(m.content["config"]["server-round"]): numbers(m.content["arrays"]) for m in asked}
    t = max(rounds)
    if t > 1:
        reply.content["arrays"] = arrays(**{k: now - 100 * (now - rounds[t - 1][k]) for k, now in rounds[t].items()})


@cache
def clean(strategy: str) -> tuple[float, float]:
    return outcome(None, strategy)


def client(name: str, attack: Callable[[Any, Any], None], strategy: str = "FedAvg") -> Row:
    def row(_: Path) -> tuple[bool, str]:
        (right, rate), (usual, usual_rate) = outcome(attack, strategy), clean(strategy)
        words = f"{100 * right:.0f} %, highest rate {rate:.3g} (nobody hostile: {100 * usual:.0f} %, {usual_rate:.3g})"
        return right > usual - 0.03 and rate < 5 * usual_rate, words

    return f"Flower: {name}", row


CLIENTS = [
    client("loss 1e9 from round 6", loss(lambda _: 1e9)),
    client("loss -1e9 once", loss(lambda _: -1e9, range(7, 8))),
    client("loss NaN", loss(lambda _: math.nan, range(1, 1000))),
    client("loss x 3", loss(lambda own: 3 * own, range(1, 1000))),
    client("loss 10 in rounds 6 to 20", loss(lambda _: 10.0, range(6, 21))),
    client("loss 1e9 from round 6, around FedMedian", loss(lambda _: 1e9), "FedMedian"),
    client("loss 1e9 from round 6, around FedTrimmedAvg", loss(lambda _: 1e9), "FedTrimmedAvg"),
    client("sq-norm 1.7e308", said(**{"fedhyper.sq_norm": 1.7e308})),
    client("no loss in round 1", silent_first),
    client("update x -10", moved(-10)),
    client("update x 1e6", moved(1e6)),
    client("last step x -100", back),
    client("weight 2**53", said(num_examples=2**53)),
    client("weight 2**53, update x -10", lambda r, g: (said(num_examples=2**53)(r, g), moved(-10)(r, g))[0]),
]

# The same in the simulator --------------------------------------------------------------------------------------------


class Hostile:
    """An engine whose client 3 changes its replies."""

    def __init__(self, engine: Any, attack: Callable[[Any, int, Any], Any]) -> None:
        self.engine, self.attack, self.round, self.sent = engine, attack, 0, [None, None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def train(self, tasks: Any, sent: Any) -> Iterator[Any]:
        if self.sent[1] is not sent.weights:
            self.round, self.sent = self.round + 1, [self.sent[1], sent.weights]
        step = None if self.sent[0] is None else self.sent[0] - sent.weights
        for reply in self.engine.train(tasks, sent):
            yield self.attack(reply, self.round, step) if reply.client == 3 else reply


@cache
def simulated(attack: Callable[[Any, int, Any], Any]) -> float:
    try:
        from fedhyper.lab.config.model import make_config
        from fedhyper.lab.running.build import make_simulation
    except ImportError:
        from fedhyper.lab.build import make_simulation  # type: ignore

        from fedhyper.lab.config import make_config  # type: ignore
    values = {"task": "digits", "model": "mlp", "method": "fedhyper", "clients": 10, "clients_per_round": 10}
    simulation = make_simulation(make_config(values | {"rounds": 30, "local_lr": 0.1, "batch_size": 10}), workers=1)
    simulation.engine = Hostile(simulation.engine, attack)
    records = [simulation.run_round(evaluate=t == 29) for t in range(30)]
    simulation.close()
    return float(records[-1]["accuracy"])


def honest(reply: Any, t: int, step: Any) -> Any:
    return reply


def simulator(name: str, attack: Callable[[Any, int, Any], Any]) -> Row:
    def row(_: Path) -> tuple[bool, str]:
        right, usual = simulated(attack), simulated(honest)
        return right > usual - 0.03, f"{100 * right:.0f} % (nobody hostile: {100 * usual:.0f} %)"

    return f"simulator: {name}", row


SIMULATOR = [
    simulator("loss 1e9 from round 6", lambda r, t, _: r._replace(first_loss=1e9) if t > 5 else r),
    simulator("loss -1e9 once", lambda r, t, _: r._replace(first_loss=-1e9) if t == 7 else r),
    simulator("loss NaN", lambda r, t, _: r._replace(first_loss=math.nan)),
    simulator("loss x 3", lambda r, t, _: r._replace(first_loss=3 * r.first_loss) if t > 5 else r),
    simulator("loss 10 in rounds 6 to 20", lambda r, t, _: r._replace(first_loss=10.0) if 6 <= t <= 20 else r),
    simulator("update x -10", lambda r, t, _: r._replace(delta=-10 * r.delta)),
    simulator("update x 1e6", lambda r, t, _: r._replace(delta=1e6 * r.delta)),
    simulator("last step x -100", lambda r, t, step: r if step is None else r._replace(delta=-100 * step)),
    simulator("weight 2**53", lambda r, t, _: r._replace(examples=2**53)),
]

# Files and the command line -------------------------------------------------------------------------------------------

MAIN = "from fedhyper.lab.cli import main; main()"  # `python -m fedhyper` is younger
TINY = "clients = 8\nclients_per_round = 4\nbatch_size = 16\ncheckpoint_every = 1\n"


def command(line: str, home: Path, limit: str = "unlimited") -> tuple[int, str]:
    """Exit code of ``fedhyper LINE``, and what it says on stderr; ``limit``: KiB of memory."""
    script = f"cd {home}; ulimit -v {limit}; {sys.executable} -c '{MAIN}' {line}; exit ${{PIPESTATUS[0]}}"
    timed = ["timeout", "90", "bash", "-c", script]
    done = subprocess.run(timed, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    return done.returncode, done.stderr if done.returncode != 124 else "no answer in 90 seconds"


def one_line(code: int, line: str, config: str = TINY, limit: str = "unlimited") -> Callable[[Path], tuple[bool, str]]:
    def row(home: Path) -> tuple[bool, str]:
        (home / "tiny.toml").write_text(config)
        got, words = command(line, home, limit)
        last = words.strip().splitlines()[-1:] or [""]
        return got == code and "Traceback" not in words, f"exit {got}: {last[0][:90]}"

    return row


def resumed(change: Callable[[Path], None], data: bool = False) -> Callable[[Path], tuple[bool, str]]:
    """A run of two rounds that is continued after ``change``: it must be refused with 4, in a line."""

    def row(home: Path) -> tuple[bool, str]:
        (home / "tiny.toml").write_text(TINY + ('task = "mnist"\nmodel = "logistic"\nsubset = 400\n' if data else ""))
        if data:
            write_mnist(home, 0)
        ENVIRONMENT["FEDHYPER_DATA"] = str(home)
        code, words = command("run tiny.toml rounds=2 --out run --no-report --quiet", home)
        assert code == 0, words
        change(home)
        code, words = command("run tiny.toml rounds=3 --out run --resume --no-report --quiet", home)
        last = words.strip().splitlines()[-1:] or ["goes on in silence"]
        return code == 4 and "Traceback" not in words, f"exit {code}: {last[0][:90]}"

    return row


def write_mnist(home: Path, pixel: int) -> None:
    (home / "mnist").mkdir(exist_ok=True)
    for kind, count in (("train", 60_000), ("t10k", 10_000)):
        images, labels = np.full((count, 28, 28), pixel, "u1"), (np.arange(count) % 10).astype("u1")
        for name, array in ((f"{kind}-images-idx3-ubyte", images), (f"{kind}-labels-idx1-ubyte", labels)):
            head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            (home / "mnist" / name).write_bytes(head + array.tobytes())


def tampered(home: Path) -> None:
    metrics = home / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"global_lr": 1', b'"global_lr": 9', 1))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    if not items:
        yield path
    for key, item in items:
        yield from leaves(item, (*path, key))


def forged(home: Path) -> tuple[bool, str]:
    """Every eighth leaf of a saved state is replaced by a word, with a right digest."""
    try:
        from fedhyper.storage import checkpoint
    except ImportError:
        from fedhyper import checkpoint  # type: ignore[attr-defined,no-redef]
    (home / "tiny.toml").write_text(TINY)
    assert command("run tiny.toml rounds=2 --out run --no-report --quiet", home)[0] == 0
    newest = max((home / "run" / "checkpoint").glob("*.ckpt"))
    whole, (tensors, values) = newest.read_bytes(), checkpoint.load(newest)
    for other in (home / "run" / "checkpoint").glob("*.ckpt"):
        if other != newest:
            other.unlink()
    metrics = (home / "run" / "metrics.jsonl").read_bytes()
    places, bad = list(leaves(values["state"]))[::8], []
    for path in places:
        changed = json.loads(json.dumps(values))
        place = changed["state"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "word"
        checkpoint.save(newest, tensors, changed)
        code, words = command("run tiny.toml rounds=3 --out run --resume --no-report --quiet", home)
        if code != 4 or "Traceback" in words:
            bad.append(f"{'.'.join(map(str, path))}: exit {code}")
        newest.write_bytes(whole)
        (home / "run" / "metrics.jsonl").write_bytes(metrics)
    return not bad, f"{len(places) - len(bad)} of {len(places)} refused; {'; '.join(bad[:2])}"


def sparse(home: Path) -> tuple[bool, str]:
    write_mnist(home, 0)
    with (home / "mnist" / "train-labels-idx1-ubyte").open("r+b") as file:
        file.truncate(4 << 30)
    ENVIRONMENT["FEDHYPER_DATA"] = str(home)
    code, words = command("data check mnist", home, limit="3000000")
    return code == 5 and "MemoryError" not in words and "Traceback" not in words, f"exit {code}: {words.strip()[-90:]}"


def bomb(home: Path) -> tuple[bool, str]:
    (home / "shakespeare").mkdir()
    deflate = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    block = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_FULL_FLUSH)
    path = home / "shakespeare" / "input.txt"
    path.write_bytes(gzip.compress(b"")[:10] + block * 32 + b"\x03\x00" + bytes(8))
    ENVIRONMENT["FEDHYPER_DATA"] = str(home)
    code, words = command("data check shakespeare", home, limit="1500000")
    return code == 5 and "MemoryError" not in words and "Traceback" not in words, f"exit {code}: {words.strip()[-90:]}"


def million_steps(home: Path) -> tuple[bool, str]:
    (home / "tiny.toml").write_text(TINY + "local_steps = 1000000\nrounds = 1\nlocal_lr = 0.01\n")
    script = [sys.executable, "-c", MAIN, "run", "tiny.toml", "--out", "run", "--quiet", "--workers", "1"]
    run = subprocess.Popen(script, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    most, began = 0, time.monotonic()
    while run.poll() is None and time.monotonic() - began < 60 and most < 1 << 20:
        words = Path(f"/proc/{run.pid}/status").read_text()
        most = max(most, *(int(line.split()[1]) for line in words.splitlines() if line.startswith("VmHWM")), 0)
        time.sleep(0.2)
    run.kill()
    run.wait()
    return most < 1 << 20, f"{most >> 10} MiB within a minute"


FILES: list[Row] = [
    ("files: --resume after the data were replaced", resumed(lambda home: write_mnist(home, 7), data=True)),
    ("files: metrics.jsonl changed, then --resume", resumed(tampered)),
    ("files: a forged checkpoint with a right digest", forged),
    ("files: a label file of 4 GB", sparse),
    ("files: 2 GB in a gzip in place of a text", bomb),
    ("command: --out of 256 bytes", one_line(74, f"run tiny.toml rounds=1 --out {'x' * 256}")),
    (
        "command: model_options.hidden = 1e9",
        one_line(2, f"run tiny.toml model=mlp model_options.hidden={10**9} --out run"),
    ),
    ("command: depth = 1000000", one_line(2, "run tiny.toml model=mlp model_options.depth=1000000 --out run")),
    ("command: > /dev/full", one_line(74, "run tiny.toml rounds=30 --out run > /dev/full")),
    ("command: | head", one_line(141, "run tiny.toml rounds=30 --out run | head -n 1")),
    ("command: local_steps = 1000000", million_steps),
]
ROWS: list[Row] = [*CLIENTS, *SIMULATOR, *FILES]


def main(words: list[str]) -> int:
    """Print every row that has one of ``words`` in it, or all; how many fail."""
    failed = 0
    for name, row in ROWS:
        if words and not any(word in name for word in words):
            continue
        with tempfile.TemporaryDirectory() as home:
            try:
                held, seen = row(Path(home))
            except Exception as error:  # a row that ends so is what was found
                held, seen = False, f"{type(error).__name__}: {str(error)[:90]}"
        failed += not held
        print(f"{'holds' if held else 'FAILS'}  {name:50} {seen}", flush=True)
    return failed


if __name__ == "__main__":
    import flwr  # noqa: F401  sets a level of its own

    logging.getLogger("flwr").setLevel(logging.ERROR)  # here: a test that calls main() leaves others their log
    sys.exit(main(sys.argv[1:]))
