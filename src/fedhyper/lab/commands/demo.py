"""``fedhyper demo``: what this is for, in under a minute."""

from __future__ import annotations

from fedhyper.lab.commands.options import NoReport, Out, Quiet


def demo(
    out: Out = None,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """FedAvg and FedHyper side by side from a rate 100 times too small. No network, under a minute."""
    from fedhyper.lab.demo import run_demo

    run_demo(out, quiet=quiet, report=not no_report)
