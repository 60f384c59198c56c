"""The headline table: what each group reached and what it cost, as Markdown, LaTeX, CSV, or rows for the page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

from fedhyper.errors import UserError
from fedhyper.lab.results.comparing import baseline, same_problem
from fedhyper.lab.results.groups import Group, describe
from fedhyper.lab.results.metrics import Stat, quantile, short
from fedhyper.lab.results.parts import Part, make_parts
from fedhyper.lab.results.series import Series
from fedhyper.lab.results.stored import load_runs

Style = Literal["md", "latex", "csv"]
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One group in words; ``best`` marks the highest final accuracy among groups that may be ranked."""

    group: Group
    cells: tuple[str, ...]
    best: bool


COLUMNS = ("setting", "runs", "final accuracy (%)", "rounds to target", "seconds to target", "MB sent")
SWEEP = ("series", "settings", "runs", "median accuracy (%)", "worst (%)", "best (%)", "reach target", "best setting")
OVERHEAD = ("s / round", "time vs fedavg", "bytes vs fedavg")


def headline_table(paths: Sequence[Path], style: Style) -> str:
    """The headline table of the runs under ``paths``, ready to paste; ends with a newline.

    One for each kind of run (``make_parts``), under its name; CSV has them in one, with the kind in the last column.
    """
    if style not in get_args(Style):
        raise UserError(f"table style {style!r} is unknown; use md, latex or csv")
    parts = make_parts(load_runs(paths))
    if style == "csv":
        return _csv(parts)
    header, tables = [*COLUMNS, *OVERHEAD], []
    for part in parts:
        rows = [list(row.cells) for row in headline_rows(part.groups)]
        table = _markdown(header, rows) if style == "md" else _latex(header, rows)
        title = f"**{_md(part.title)}**\n\n" if style == "md" else f"% {_tex(part.title)}\n"
        tables.append(title + table if part.title else table)
    return "\n".join(tables)


def headline_rows(groups: Sequence[Group]) -> list[Row]:
    """A row a group, cells in the order of COLUMNS and OVERHEAD; what is not known is an en dash."""
    rankable = all(same_problem(groups[0], group) for group in groups)
    reached = [(stat.mean, i) for i, group in enumerate(groups) if (stat := group.accuracy())]
    best = max(reached)[1] if rankable and len(reached) > 1 else None
    return [Row(group, _cells(group, groups), index == best) for index, group in enumerate(groups)]


def sweep_rows(series: Sequence[Series]) -> list[tuple[str, ...]]:
    """A row a series of a sweep, cells in the order of SWEEP: how it does over all settings, and where it does best."""
    rows: list[tuple[str, ...]] = []
    for one in series:
        means = [(stat.mean, _within(group)) for group in one.groups if (stat := group.accuracy())]
        values = [mean for mean, _ in means] or [float("nan")]
        aims = [run for run in one.runs if run.target_accuracy is not None]
        hits = sum(run.to_target() is not None for run in aims)
        rows.append(
            (
                one.label,
                str(len(one.groups)),
                str(len(one.runs)),
                short(100 * quantile(values, 0.5), 1),
                short(100 * min(values), 1),
                short(100 * max(values), 1),
                f"{hits} of {len(aims)}" if aims else "–",
                _where(means),
            )
        )
    return rows


def _where(means: Sequence[tuple[float, str]]) -> str:
    """The setting with the highest mean; all of them where none is higher."""
    if not means:
        return "–"
    return "all alike" if len(means) > 1 and min(means)[0] == max(means)[0] else max(means)[1]


def _within(group: Group) -> str:
    return describe(group.settings, [key for key in group.apart if key != "method"]) or group.label


def _cells(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    ended = sum(run.ended for run in group.runs)
    count = str(len(group.runs)) if ended == len(group.runs) else f"{len(group.runs)} ({ended} ended)"
    accuracy, sent, spent = group.accuracy(), group.bytes_total(), group.seconds_per_round()
    slower, heavier = _overhead(group, groups)
    return (
        group.label,
        count,
        spread(accuracy, 1, 100.0) if accuracy else "–",
        _to_target(group, group.rounds_to_target(), 0),
        _to_target(group, group.seconds_to_target(), 1),
        f"{sent.mean / 1e6:,.1f}" if sent else "–",
        f"{spent:.3g}" if spent is not None else "–",
        f"{100 * slower:+.1f} %" if slower is not None else "–",
        f"{100 * heavier:+.1f} %" if heavier is not None else "–",
    )


def spread(stat: Stat, digits: int, factor: float = 1.0) -> str:
    """``81.2 ± 0.4``; without the second part below two values."""
    mean = short(factor * stat.mean, digits)
    return mean if stat.std is None else f"{mean} ± {short(factor * stat.std, digits)}"


def _to_target(group: Group, stat: Stat | None, digits: int) -> str:
    if all(run.target_accuracy is None for run in group.runs):
        return "–"
    if stat is None:
        return "not reached"
    missed = f" ({stat.n} of {len(group.results)})" if stat.n < len(group.results) else ""
    return spread(stat, digits) + missed


def _overhead(group: Group, groups: Sequence[Group]) -> tuple[float | None, float | None]:
    """Seconds and bytes of a round above FedAvg's, as fractions; None where no FedAvg run is comparable."""
    rivals = baseline(group, groups)
    return (
        _ratio(group.seconds_per_round(), [rival.seconds_per_round() for rival in rivals]),
        _ratio(group.bytes_per_round(), [rival.bytes_per_round() for rival in rivals]),
    )


def _ratio(mine: float | None, theirs: Sequence[float | None]) -> float | None:
    known = [value for value in theirs if value]
    return mine / fmean(known) - 1.0 if mine is not None and known else None


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *[[_md(cell) for cell in row] for row in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _md(text: str) -> str:
    """Backslashes before what Markdown or the HTML in it would read as marks; a label like ``a_b`` stays itself."""
    return re.sub(r"([\\`*\[\]<>|#~]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = [" & ".join(map(_tex, line)) + r" \\" for line in rows]
    return "\n".join(
        [
            r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
            r"\hline",
            " & ".join(map(_tex, header)) + r" \\",
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def _tex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text).replace("–", "--")


def _csv(parts: Sequence[Part]) -> str:
    """Numbers as numbers, a column each, for programs and spreadsheets; accuracies are fractions, empty is unknown."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    pairs = ("final_accuracy", "rounds_to_target", "seconds_to_target", "bytes")
    header = ["setting", "method", "runs", "ended", *(f"{name}{part}" for name in pairs for part in ("", "_std"))]
    writer.writerow([*header, "reached_target", "seconds_per_round", "time_vs_fedavg", "bytes_vs_fedavg", "kind"])
    for part, group in [(one, group) for one in parts for group in one.groups]:
        stats = (group.accuracy(), group.rounds_to_target(), group.seconds_to_target(), group.bytes_total())
        values = [value for stat in stats for value in ((stat.mean, stat.std) if stat else (None, None))]
        ended = sum(run.ended for run in group.runs)
        counts = [len(group.runs), ended, *values, sum(run.to_target() is not None for run in group.runs)]
        figures = [*counts, group.seconds_per_round(), *_overhead(group, part.groups)]
        cells = ["" if figure is None else f"{figure:.9g}" for figure in figures]
        writer.writerow([_inert(group.label), _inert(group.method), *cells, _inert(part.title)])
    return out.getvalue()


def _inert(text: str) -> str:
    """A spreadsheet runs a cell that begins like a formula; an apostrophe in front makes it text."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
