"""Numbers and runs in words, for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedhyper.errors import printable
from fedhyper.lab.config.model import Config
from fedhyper.lab.results.metrics import short

if TYPE_CHECKING:
    from fedhyper.lab.running.progress import Record, Summary


BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32  # of a sparkline


def sparkline(values: Iterable[float | None], width: int = WIDTH, log: bool = False) -> str:
    """The last ``width`` values as bars between the lowest and the highest of them; rates on a log scale."""
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)][-width:]
    scaled = [math.log(v) for v in known] if log else known
    if not scaled:
        return ""
    low, span = min(scaled), max(scaled) - min(scaled)
    if span < 1e-9 * max(1.0, abs(low)):
        return BARS[3] * len(scaled)
    return "".join(BARS[min(7, int(8 * (v - low) / span))] for v in scaled)


def duration(seconds: float) -> str:
    """``7 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(value: float | None) -> str:
    """A fraction as ``71.25 %``; nothing measured is ``-``."""
    return "-" if value is None else f"{short(100 * value, 2)} %"


def number(value: float | None) -> str:
    """A number with four significant digits, ``0.0001234``; nothing measured is ``-``."""
    return "-" if value is None else f"{value:.4g}"


def title(config: Config) -> str:
    """What is being run, in a line."""
    rates = f"local_lr {config.local_lr:g} · global_lr {config.global_lr:g}"
    clients = "" if config.local_optimizer == "sgd" else f"{config.local_optimizer} "
    return printable(
        f"{config.task} · {config.model} · {config.method} · {config.clients_per_round} of {config.clients} {clients}"
        f"clients a round · {'finds its rates' if config.finds_rates else rates} · seed {config.seed}"
    )


def closing(config: Config, summary: Summary) -> str:
    """How a run ended, in a line."""
    status = "stopped" if summary["status"] == "running" else summary["status"]
    parts = [f"{status} after round {summary['rounds']}"]
    if status == "finished" and summary["rounds"] < config.rounds:
        at_target = config.stop_at_target and summary["rounds_to_target"]
        why = "stop_at_target" if at_target else f"patience = {config.patience}"
        parts[0] += f" of {config.rounds} ({why})"
    if summary["final_accuracy"] is not None:
        best = "where validation was best" if config.validation else "best"
        parts.append(f"accuracy {percent(summary['final_accuracy'])} ({best} {percent(summary['best_accuracy'])})")
    if summary["target_accuracy"]:
        reached = summary["rounds_to_target"]
        target = percent(summary["target_accuracy"])
        parts.append(f"{target} reached in round {reached}" if reached else f"{target} not reached")
    parts.append(f"{duration(summary['seconds'])} of training")
    if summary["start_trials"]:
        cost = f"{duration(summary['start_seconds'])} and {summary['start_trials']} extra local rounds"
        parts[-1] += f" ({cost} to find the rate)"
    return ", ".join(parts)


def remarks(record: Record) -> str:
    """What is unusual about a round."""
    parts = []
    if record["clients_rejected"]:
        reasons = ", ".join(f"{n} {printable(why, 60)}" for why, n in record["reject_reasons"].items())
        parts.append(f"rejected: {reasons}")
    if record["rollback"]:
        parts.append("rolled back")
    if "start_failed" in record:
        parts.append("no rate found")
    if "epsilon" in record:
        parts.append(f"ε {number(record['epsilon'])}")
    return f"  [{'; '.join(parts)}]" if parts else ""
