"""``fedhyper demo``: what this is for, in under a minute."""

from __future__ import annotations

from fedhyper.lab.commands.options import NoReport, Out, Quiet


def demo(
    out: Out = None,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """FedAvg from a rate 100 times too small, FedHyper, which is given none, and FedAvg with a good one, side by side.

    No network, under a minute. The same command goes on after an interruption.
    """
    from fedhyper.lab.demo import run_demo

    run_demo(out, quiet=quiet, report=not no_report)
