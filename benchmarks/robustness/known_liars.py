"""Imported, by name, in every process that runs cells: makes ``method = "fedhyper-liars"`` known."""

from __future__ import annotations

from benchmarks.robustness.liars import fedhyper_liars
from fedhyper.sim.registry import register_method

register_method("fedhyper-liars", "fedhyper among clients that lie about their loss")(fedhyper_liars)
