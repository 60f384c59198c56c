"""When is FedHyper-G awake? How far its inner product can move the global rate, over local epochs and model sizes.

G adds <delta_t, delta_t-1> to its rate. The rate starts at 1, whatever is trained; the product has the square of the
length of an update in it, and that grows with every step a client makes. Two or three rounds show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedhyper.lab.paper.blocks import Block, Experiment, Level
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import SCALES, Scale

EPOCHS = (1, 2, 5, 10)
MOVES = 0.1  # of the rate: what counts as awake in the first update
OLD = "the old small scale (100 images a client, two local epochs)"
HEADER = (
    "",
    "|Δ| in round 1",
    "round 2",
    "⟨Δ₂, Δ₁⟩",
    "⟨Δ₃, Δ₂⟩",
    "cosine of Δ₂ and Δ₁",
    "α in rounds 1, 2, 3",
    "awake?",
)


def _models(scale: Scale) -> dict[str, dict[str, Any]]:
    """The CNN of the paper's setting, and two perceptrons: one of its size, one fourteen times as large."""
    names = ("MLP, 25 k parameters", "MLP, 407 k parameters") if scale != "smoke" else ("MLP of 32", "MLP of 512")
    perceptrons = {
        name: {"model": "mlp", "model_options.hidden": hidden} for name, hidden in zip(names, (32, 512), strict=True)
    }
    first = ("CNN, 29 k parameters", "cnn") if scale != "smoke" else ("softmax regression", "logistic")
    return {first[0]: {"model": first[1]}} | perceptrons


def _name(model: str, epochs: int) -> str:
    return f"{model}, {epochs} epoch{'s' if epochs > 1 else ''}"


def _levels(task: str, scale: Scale) -> tuple[Level, ...]:
    levels = [
        Level(_name(model, epochs), settings | {"local_epochs": epochs})
        for model, settings in _models(scale).items()
        for epochs in EPOCHS
    ]
    images = 10_000 if scale != "smoke" else 300
    return (*levels, Level(OLD, {"local_epochs": 2, "batch_size": 32, "subset": images}))


AWAKE = Experiment(
    "When is FedHyper-G awake?",
    (Block(("mnist",), ("g",), _levels, seeds=1),),
    figures=("awake",),
    changes={scale: {"rounds": 3} for scale in SCALES},
    scales=("smoke", "small"),
    own=True,
    about="""G's rule is α ← α + ⟨Δₜ, Δₜ₋₁⟩, with α = 1 to begin with and Δ the mean update of a round. α has no unit,
the product has the square of an update's length in it. A client that makes twice the steps moves up to twice as far,
and the product grows up to fourfold, while α stays what it was. So whether G does anything is decided by the local
work: by images a client × epochs ÷ batch, and by the local rate.

Everything below is the paper's setting on MNIST (100 clients, 10 a round, 600 images each, batch 64, rate 0.01,
Dirichlet 0.5) but for the epochs and the model; the last line is the setting of our [old pages](shrunk/README.md). G
counts as *awake* when its first update moves α by a tenth or more.

What it shows: from one epoch to ten the product grows 24 to 68 times (the square of ten is 100; clients slow down as
they learn). The size of the model hardly matters: 25 k and 407 k parameters give the same curve. At the old small scale
the product is 0.005, and G's rate goes 1, 1.005, 1.011: G *was* FedAvg there, and “G is not above FedAvg” was true by
construction and said nothing about the paper. At the paper's ten epochs the same rule goes 1, 1.36, 1.44. The cosine of
two updates, which has no length in it, is 0.4 to 0.8 throughout: direction was never the problem.

FedHyper-SL adds the *same* number to the clients' rate of 0.01, which is bounded by 0.1, and so changes its verdict the
other way round. At the old small scale the number was of the rate's own size: SL climbed step by step and won. At the
paper's ten epochs 0.36 meets 0.01: the first update throws the rate to its upper bound, the next one to its lower
([fig-sl](fig-sl.md)). What puts G to sleep suits SL, and what wakes G makes SL a switch between its bounds. FedHyper-CL
compares gradients of single steps, whose length does not depend on how many there are, and keeps its verdicts so far
([fig-cl](fig-cl.md)).""",
    notes=("One seed, three rounds: this shows orders of magnitude, not accuracies.",),
)


def _records(results: Results, task: str, level: str) -> list[dict[str, Any]] | None:
    """The first three rounds at this level; None when they are not there."""
    runs = results.runs(task, "g", level)
    return runs[0].rounds[:3] if runs and len(runs[0].rounds) >= 3 else None


def table_rows(results: Results, task: str, levels: Sequence[str]) -> Iterator[list[str]]:
    """A row a level, in the order of HEADER."""
    for level in levels:
        rounds = _records(results, task, level)
        if rounds is None:
            yield [level, *["–"] * (len(HEADER) - 1)]
            continue
        norms = [f"{one['update_norm']:.3f}" for one in rounds[:2]]
        grads = [one["hypergrad"] or 0.0 for one in rounds[1:]]
        rates = ", ".join(f"{one['global_lr']:.3f}" for one in rounds)
        awake = "yes" if abs(grads[0]) >= MOVES * rounds[0]["global_lr"] else "no"
        yield [level, *norms, *(f"{one:.4f}" for one in grads), f"{rounds[1]['cosine'] or 0.0:.2f}", rates, awake]


def chart(results: Results, task: str, scale: Scale) -> Any:
    """The first inner product against local epochs, both log, a line a model; dashed: a tenth of the rate."""
    import altair as alt

    from fedhyper.lab.results.charts.chart import Chart, colour

    models = list(_models(scale))
    rows: list[dict[str, Any]] = []
    for model in models:
        for epochs in EPOCHS:
            rounds = _records(results, task, _name(model, epochs))
            if rounds is not None and rounds[1]["hypergrad"]:
                rows.append({"series": model, "epochs": epochs, "product": abs(rounds[1]["hypergrad"])})
    x = alt.X(
        "epochs:Q", title="local epochs", scale=alt.Scale(type="log"), axis=alt.Axis(values=list(EPOCHS), format="d")
    )
    title = "inner product of the first two updates, added to a rate of 1"
    y = alt.Y(
        "product:Q",
        title=title,
        scale=alt.Scale(type="log", nice=True),
        axis=alt.Axis(format="~g", values=[0.003, 0.01, 0.03, 0.1, 0.3, 1]),
    )
    lines = alt.Chart(alt.NamedData("rows")).encode(x=x, y=y, color=colour(models, legend=True))
    line = alt.Chart(alt.NamedData("level")).mark_rule(strokeDash=[4, 4]).encode(y="product:Q")
    marks = alt.layer(line, lines.mark_line(strokeWidth=2), lines.mark_point(filled=True, size=60, opacity=1))
    return Chart(marks.properties(width="container", height=300), {"rows": rows, "level": [{"product": MOVES}]})
