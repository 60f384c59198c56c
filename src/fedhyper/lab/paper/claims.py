"""What the paper claims, what it printed, and which check decides whether our runs show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedhyper.lab.paper.blocks import SKEWS
from fedhyper.lab.paper.checks import accuracy as checks
from fedhyper.lab.paper.checks import grid as grid_checks
from fedhyper.lab.paper.checks import rounds as round_checks
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import VARIANTS, Scale

Status = Literal["reproduced", "not reproduced", "not tested here"]
Check = Callable[[Results, str], checks.Found]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about one dataset, its number, and the check that tests it."""

    text: str
    task: str
    paper: str
    check: Check
    scales: tuple[Scale, ...] = ("small", "paper")  # where the answer would mean something


@dataclass(frozen=True)
class Verdict:
    """A claim, tested."""

    text: str
    task: str
    paper: str
    ours: str
    status: Status
    why: str
    unsure: bool = False  # the difference is smaller than the seeds can tell, whatever its sign


def judge(claim: Claim, results: Results, scale: Scale) -> Verdict:
    """The verdict on one claim. Digits are not the paper's data: at the scale smoke nothing is decided."""
    task = claim.task if scale != "smoke" else "digits"
    found = claim.check(results, task)
    status: Status = "not tested here"
    why = found.why
    if scale == "smoke":
        why = "smoke: digits stand in for the data; this shows only that the command works"
    elif scale not in claim.scales:
        why = "a number of the paper's own model, which this scale does not train"
    elif found.holds is not None:
        status = "reproduced" if found.holds else "not reproduced"
    return Verdict(
        claim.text, claim.task, claim.paper, found.ours, status, why, found.unsure and status != "not tested here"
    )


# --- the claims ------------------------------------------------------------------------------------------------

_G_RIVALS = ("fedavg", "fedadagrad", "fedadam", "fedexp", "decay-g")
_BEST = "best (figure)"
_NOT_FMNIST = "– (its “FMNIST” is MNIST)"


def _best(text: str, task: str, paper: str, ours: str, *rivals: str) -> Claim:
    return Claim(text, task, paper, partial(checks.above_best, ours=ours, rivals=rivals))


def _early(task: str, paper: str, ours: str, rivals: tuple[str, ...], share: float) -> Claim:
    text = "converges faster in the early rounds than all baselines"
    return Claim(text, task, paper, partial(checks.earlier, ours=ours, rivals=rivals, share=share))


def _times(ours: str) -> tuple[Claim, ...]:
    test = partial(checks.times_faster, ours=ours, at_least=1.1)
    return tuple(
        Claim("converges 1.1 to 3 × faster than FedAvg", task, "1.1–3 × (abstract)", test) for task in _G_FINAL
    )


_TABLE = {
    "mnist": ("98.62 / 98.92", "96.35 / 97.03", "96.36 / 96.97", "97.00 / 97.80"),
    "fmnist": (_NOT_FMNIST,) * 4,
    "cifar10": ("67.14 / 67.45", "56.71 / 57.18", "57.14 / 58.42", "53.55 / 55.10"),
}
_MOST_SKEWED = {"mnist": "+0.80 at 0.25, the most of the three", "fmnist": _NOT_FMNIST, "cifar10": "+1.55 at 0.25"}
_G_FINAL = {"mnist": "+0.45", "fmnist": _NOT_FMNIST, "cifar10": "+0.58", "shakespeare": "+0.66"}
_G_EARLY = {
    "mnist": ("rounds 0–25 of 50", 0.5),
    "fmnist": (_NOT_FMNIST, 0.5),
    "cifar10": ("rounds 0–80 of 200", 0.4),
    "shakespeare": ("rounds 0–300 of 600", 0.5),
}
_CL_FINAL = {"mnist": "+0.44", "fmnist": _NOT_FMNIST, "cifar10": "+1.18"}

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "fig-g": (
        *_times("g"),
        *(_early(task, words, "g", _G_RIVALS, share) for task, (words, share) in _G_EARLY.items()),
        *(_best("above the best baseline", task, gain, "g", *_G_RIVALS) for task, gain in _G_FINAL.items()),
    ),
    "fig-sl": (
        *_times("sl"),
        *(
            _best("above FedAvg and Decay-SL", task, "superior (figure)", "sl", "fedavg", "decay-sl")
            for task in _G_FINAL
        ),
        *(
            Claim(
                "speed and accuracy comparable with G, or better",
                task,
                "“comparable, if not superior”",
                partial(checks.comparable, ours="sl", rival="g"),
            )
            for task in _G_FINAL
        ),
        Claim(
            "reaches 50 % sooner than G",
            "shakespeare",
            "round ≈ 150, G ≈ 250",
            partial(checks.sooner, ours="sl", rivals=("g",), level=0.5),
        ),
    ),
    "fig-cl": (
        *_times("cl"),
        *(
            _best("above FedAvg with SGD and with Adam", task, gain, "cl", "fedavg", "local-adam")
            for task, gain in _CL_FINAL.items()
        ),
        _best("above FedAvg with SGD", "shakespeare", "+1.33", "cl", "fedavg"),
        Claim(
            "aligns closely with FedAvg with Adam",
            "shakespeare",
            "close",
            partial(checks.close_to, ours="cl", rival="local-adam"),
        ),
        Claim(
            "CL is better than SL, SL better than G",
            "shakespeare",
            "52.08, 51.70, 51.08 %",
            partial(checks.ordered, best_first=("cl", "sl", "g")),
        ),
        Claim(
            "CL converges sooner than SL and G",
            "shakespeare",
            "round ≈ 100; the others ≈ 300",
            partial(checks.sooner, ours="cl", rivals=("sl", "g")),
        ),
    ),
    "fig-robust": (
        *(
            Claim("gains of 1 to 5 points for most initial rates", task, "most of 25 cells", grid_checks.most_cells)
            for task in ("cifar10", "shakespeare")
        ),
        Claim(
            "a large gain from the smallest rates of the grid",
            "shakespeare",
            "30 → 45.77 %, +15 at α 0.5, β 0.001",
            grid_checks.worst_rates,
        ),
        Claim(
            "what FedAvg reaches over the grid",
            "cifar10",
            "43.7 to 57.2 %",
            partial(grid_checks.fedavg_span, low=0.437, high=0.572),
            ("paper",),
        ),
    ),
    "fig-compose": (
        _best("improves server momentum", "cifar10", "improves (figure)", "g+momentum", "momentum"),
        _best("improves FedAdam", "cifar10", "“marked enhancement”", "g+adam", "fedadam"),
    ),
    "fig-curve": tuple(
        Claim(text, task, paper, test)
        for task in ("cifar10", "mnist", "fmnist")
        for text, paper, test in (
            ("G's rate rises to round 15 of 100, then falls", "peak at ≈ 15", round_checks.rises_then_falls),
            ("G's rate is above 1 in the first half, below 1 in the second", "> 1, then < 1", round_checks.halves),
            ("FedExP's rate stays between 1.0 and 1.5", "1.0–1.5", round_checks.fedexp_range),
        )
    ),
    "tab-noniid": (
        *(
            Claim(
                f"FedHyper above FedAvg, {level.name}", task, cells[i], partial(grid_checks.skew_gain, level=level.name)
            )
            for task, cells in _TABLE.items()
            for i, level in enumerate(SKEWS)
        ),
        *(
            Claim("helps most where data is most skewed", task, paper, grid_checks.most_at_most_skewed)
            for task, paper in _MOST_SKEWED.items()
        ),
    ),
    "fig-combine": tuple(
        _best("G+CL is better than G and than CL", task, paper, "g+cl", "g", "cl")
        for task, paper in (("cifar10", _BEST), ("shakespeare", _BEST), ("mnist", "– (not in the figure)"))
    ),
    "overhead": (
        *(
            Claim(
                f"{VARIANTS[variant].label} costs next to nothing",
                task,
                "negligible",
                partial(round_checks.negligible, variant=variant),
            )
            for task in ("fmnist", "shakespeare")
            for variant in ("g", "sl")
        ),
        *(
            Claim(
                "FedHyper-CL costs more than G",
                task,
                "“higher computational overhead”",
                partial(round_checks.costs_more, variant="cl", than="g"),
            )
            for task in ("fmnist", "shakespeare")
        ),
    ),
    "own-rates": tuple(
        Claim(text, task, "– (the paper has one rate)", partial(grid_checks.at_own_best, ours=ours, rivals=rivals))
        for task in ("mnist", "fmnist")
        for text, ours, rivals in (
            ("G above the best baseline, each at its own best rate", "g", _G_RIVALS),
            ("SL above FedAvg and Decay-SL, each at its own best rate", "sl", ("fedavg", "decay-sl")),
            ("CL above FedAvg, each at its own best rate", "cl", ("fedavg",)),
            ("G+CL above the best baseline, each at its own best rate", "g+cl", _G_RIVALS),
        )
    ),
    "awake": (),  # explains, claims nothing
}


def verdicts(name: str, results: Results, scale: Scale) -> list[Verdict]:
    """Every claim of an experiment, tested."""
    return [judge(claim, results, scale) for claim in CLAIMS[name]]
