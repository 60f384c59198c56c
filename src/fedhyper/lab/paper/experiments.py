"""What the paper's figures and tables are made of: which methods, on which data, and what else they vary.

Everything here is a table; the methods and their settings are in ``variants``, and ``planning.planned_runs`` turns the
rows into cells of a sweep.
"""

from __future__ import annotations

from fedhyper.lab.paper.awake import AWAKE
from fedhyper.lab.paper.blocks import ALL, Block, Experiment, middle_row, own_rates, rate_grid, skews
from fedhyper.lab.paper.variants import Scale

_SAME_LETTER = "With α0 = 1 the two readings of G's bound, [1/γ, γ] and [α0/γ, α0·γ], are one: there is one G."
_TWO_TERMS = "CL's global term is Eq. 20's, added; `sign` is Algorithm 1's, multiplied."

_OURS = "`fedhyper (not the paper's)` is this project's learning-rate-free method; no claim of the paper is about it."
_TIMED_ROUNDS: dict[Scale, int] = {"smoke": 12, "small": 4, "paper": 4}
_NEED_GPU = ("cifar10", "shakespeare")

EXPERIMENTS: dict[str, Experiment] = {
    "fig-g": Experiment(
        "FedHyper-G against server optimizers",
        (
            Block(ALL, ("fedavg", "fedadagrad", "fedadam", "fedexp", "decay-g", "g", "auto")),
            Block(("fmnist",), ("g-cosine", "g-bound-1.5", "g-bound-10"), seeds=1, ablation=True),
        ),
        notes=(_SAME_LETTER, _OURS),
    ),
    "fig-sl": Experiment(
        "FedHyper-SL against FedAvg and a decaying local rate",
        (
            Block(ALL, ("fedavg", "decay-sl", "g", "sl", "auto")),
            Block(ALL, ("sl-letter",), seeds=1, ablation=True),
            Block(("fmnist",), ("sl-cosine", "sl-bound-3"), seeds=1, ablation=True),
        ),
        notes=(_OURS,),
    ),
    "fig-cl": Experiment(
        "FedHyper-CL against FedAvg with SGD and with Adam",
        (
            Block(ALL, ("fedavg", "local-adam", "cl", "auto")),
            Block(("shakespeare",), ("g", "sl")),
            Block(ALL, ("cl-letter", "cl-released"), seeds=1, ablation=True),
            Block(("fmnist",), ("cl-off", "cl-sign", "cl-cosine", "cl-bound-3", "cl-bound-30"), seeds=1, ablation=True),
        ),
        notes=(_TWO_TERMS, "The released code also gives its clients momentum 0.5; here every method has none.", _OURS),
    ),
    "fig-robust": Experiment(
        "Robustness to the initial rates: FedAvg and FedHyper-G+CL on a grid",
        (
            Block(_NEED_GPU, ("fedavg", "g+cl"), rate_grid, seeds=1),
            Block(_NEED_GPU, ("g+cl-letter",), middle_row, seeds=1, ablation=True),
        ),
        figures=("accuracy-map-1", "gain-map-1"),
        changes={"small": {"rounds": 10}, "smoke": {"rounds": 4}},
        notes=("The learning-rate-free method against tuned rivals: [robustness](robustness.md).",),
    ),
    "fig-compose": Experiment(
        "FedHyper-G with server momentum and with FedAdam",
        (Block(("cifar10",), ("fedavg", "momentum", "g+momentum", "fedadam", "g+adam", "auto"), seeds=1),),
        notes=(_OURS,),
    ),
    "fig-curve": Experiment(
        "The global rate over rounds: FedHyper-G and FedExP",
        (
            Block(("cifar10", "mnist", "fmnist"), ("g", "fedexp", "auto"), seeds=1),
            Block(("cifar10",), ("g-cosine", "g-bound-1.5", "g-bound-10"), seeds=1, ablation=True),
        ),
        figures=("global-lr-by-round",),
        notes=("The paper does not say on which data its curve was taken; its 100 rounds fit CIFAR-10 best.", _OURS),
    ),
    "tab-noniid": Experiment(
        "From IID to Dirichlet 0.25: FedAvg and FedHyper-G+CL",
        (
            Block(("mnist", "fmnist", "cifar10"), ("fedavg", "g+cl", "auto"), skews),
            Block(("mnist",), ("g+cl-letter",), skews, seeds=1, ablation=True),
        ),
        figures=(),
        notes=("The paper's table says FedHyper without saying which; G+CL is what it recommends.", _OURS),
    ),
    "fig-combine": Experiment(
        "FedHyper-G, FedHyper-CL, and both",
        (
            Block(("cifar10", "shakespeare", "mnist"), ("fedavg", "g", "cl", "g+cl", "auto")),
            Block(_NEED_GPU, ("g+cl-letter",), seeds=1, ablation=True),
        ),
        notes=("The paper's figure has no mnist; it is here for its runs are there.", _OURS),
    ),
    "overhead": Experiment(
        "What each scheduler adds to a round",
        (
            Block(
                ("fmnist", "shakespeare"),
                ("fedavg", "g", "sl", "cl", "cl-off", "g+cl", "cl-released", "auto"),
                seeds=3,
            ),
        ),
        figures=(),
        changes={scale: {"rounds": rounds, "eval_every": rounds} for scale, rounds in _TIMED_ROUNDS.items()},
        timed=True,
        notes=("One run at a time; the median of all rounds after the first of each run.", _OURS),
    ),
    "own-rates": Experiment(
        "Every method at its own best local rate",
        (
            Block(
                ("mnist", "fmnist"),
                ("fedavg", "fedadam", "fedexp", "g", "sl", "cl", "g+cl", "auto", "fedadagrad", "decay-g", "decay-sl"),
                own_rates,
                seeds=1,
            ),
        ),
        figures=("accuracy-by-local-lr",),
        scales=("smoke", "small"),
        own=True,
        about="The paper compares at one local rate, 0.01. Here every method may choose its best of four.",
        notes=(
            "FedAvg + Adam is left out: its rates are of another order.",
            "The figure has the first eight methods, as many as there are colours; the table has all eleven.",
            _OURS,
        ),
    ),
    "awake": AWAKE,
}
