"""About how long it all takes: from seconds an example, measured once, so that a plan can be printed at once."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.robustness.judging import most, wanted
from benchmarks.robustness.settings import Setting
from benchmarks.robustness.store import Store

# Milliseconds of one core of an Intel Xeon for one training example, 2026-11-17, on a busy machine; an evaluation takes
# about 0.35 of it an example. (lab.paper.cost times a batch instead, which takes seconds and knows no stacked clients.)
_MILLISECONDS = {
    ("digits", "mlp"): 0.011,
    ("digits", "logistic"): 0.006,
    ("mnist", "logistic"): 0.006,
    ("fmnist", "mlp"): 0.026,
    ("mnist", "cnn"): 0.28,
    ("fmnist", "cnn"): 0.28,
    ("cifar10", "cnn"): 0.45,
    ("shakespeare", "lstm"): 0.26,
    ("shakespeare", "transformer"): 1.33,
    ("sst2", "minilm-lora"): 15.0,
}
_EXAMPLES = {"digits": (1_437, 360), "cifar10": (50_000, 10_000), "shakespeare": (39_783, 4_767), "sst2": (6_920, 872)}
_CELL = 0.6  # seconds to set a run up and to write its files


def seconds(setting: Setting) -> float:
    """Seconds of one core for one run; fedhyper's first round, about ten rounds, is not in it."""
    values = setting.values
    train, test = _EXAMPLES.get(values["task"], (60_000, 10_000))
    each = _MILLISECONDS[values["task"], values["model"]] / 1000
    share = (values.get("subset") or train) * values["clients_per_round"] / values.get("clients", 100)
    steps = values.get("local_steps")
    examples = steps * values["batch_size"] * values["clients_per_round"] if steps else share
    trained = values["rounds"] * values.get("local_epochs", 1) * examples
    return float(trained * each + values["rounds"] / values["eval_every"] * test * 0.35 * each + _CELL)


def _runs(setting: Setting) -> str:
    return f"{setting.key} {setting.options} {setting.defended}"


def plan(todo: Sequence[tuple[str, Sequence[Setting]]], store: Store) -> str:
    """What is run in which order: runs and minutes of one core from nothing, and how many runs come next.

    A setting that stands twice is counted once.
    """
    lines, total, seen = [], 0.0, set[str]()
    for name, rows in todo:
        new = [row for row in rows if _runs(row) not in seen]
        seen |= {_runs(row) for row in rows}
        runs = sum(most(row) for row in new)
        nexts = len({(one.setting.key, one.word) for row in new for one in wanted(row, store)})
        spent = sum(most(row) * seconds(row) for row in new)
        total += spent
        what = rows[0].name if len(rows) == 1 else f"{len(rows)} rows: {rows[0].name}, …"
        lines.append(
            f"{name:10} {what:66} about {runs:4} runs, {spent / 60:6.1f} min of one core; next: {nexts or 'nothing'}"
        )
    return "\n".join([*lines, f"together about {total / 3600:.1f} hours of one core, from nothing"])
