"""What a row of a table says: which runs it still wants, and when it has them, how far fedhyper ends from its rival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.robustness.oracle import Rival, search, tried
from benchmarks.robustness.runs import CAP, Entry, Want
from benchmarks.robustness.settings import Axis, Setting
from benchmarks.robustness.store import Store
from fedhyper.guard import NORM_CAP

FINALISTS = 2
NEAR = 0.95  # share of the oracle's end to which rounds are counted
RATIO = 10**0.5  # r, the rule's rung


@dataclass(frozen=True)
class Row:
    """A finished row: percents by seed, and what follows from them."""

    setting: Setting
    rival: str
    theirs: tuple[float, ...]
    ours: tuple[float, ...]
    rounds: tuple[float | None, float | None]  # to 95 % of the rival's end: fedhyper's, the rival's
    rates: tuple[float, float] | None
    first: float  # seconds of training in fedhyper's first round, in medians of its rounds
    misses: tuple[str, ...]

    @property
    def difference(self) -> float:
        """fedhyper's mean minus the rival's, on the seeds that both have; points."""
        both = min(len(self.ours), len(self.theirs))
        return fmean(self.ours[:both]) - fmean(self.theirs[:both])


def scores(setting: Setting, store: Store) -> Callable[[Rival], float | None]:
    """The mean over the seeds of the search; None where one is missing."""

    def mean(rival: Rival) -> float | None:
        found = [store.get(Want(setting, rival, seed)) for seed in setting.seeds[: setting.search]]
        return fmean(one.score for one in found if one) if all(found) else None

    return mean


def wanted(setting: Setting, store: Store) -> list[Want]:
    """The runs to do next: fedhyper's, and of the rivals those that are known to be needed."""
    runs = [Want(setting, who, seed) for who in _ours(setting) for seed in setting.ours or setting.seeds]
    if setting.options:
        runs += [Want(setting, ("fedhyper", setting.starts[0], ()), seed) for seed in setting.seeds]
    else:
        score = scores(setting, store)
        coming = search(score, setting.middle, setting.least)
        runs += [Want(setting, rival, seed) for rival in coming for seed in setting.seeds[: setting.search]]
        if not coming:
            best = tried(score, setting.middle, setting.least)[:FINALISTS]
            runs += [Want(setting, rival, seed) for rival in best for seed in setting.seeds]
    return [run for run in runs if store.get(run) is None]


def most(setting: Setting) -> int:
    """About how many runs a row takes in all."""
    own = len(setting.ours or setting.seeds) * len(setting.starts)
    if setting.options or setting.defended:  # its rivals stand in another table
        return own
    return own + 2 * (max(setting.least, 4) + 7) * setting.search + FINALISTS * (len(setting.seeds) - setting.search)


def _ours(setting: Setting) -> list[tuple[str, float, tuple[tuple[str, object], ...]]]:
    options = setting.options | ({CAP: NORM_CAP} if setting.defended else {})
    return [(setting.method, start, tuple(options.items())) for start in setting.starts]


def judge(axis: Axis, setting: Setting, store: Store) -> Row | None:
    """The row; None while runs are missing."""
    if wanted(setting, store):
        return None
    own = [[_get(store, Want(setting, who, seed)) for seed in setting.ours or setting.seeds] for who in _ours(setting)]
    ours = min(own, key=lambda runs: fmean(run.score for run in runs))  # the worst start
    if setting.options:
        name = "fedhyper"
        theirs = [_get(store, Want(setting, ("fedhyper", setting.starts[0], ()), seed)) for seed in setting.seeds]
    else:
        best = tried(scores(setting, store), setting.middle, setting.least)[:FINALISTS]
        finals = {rival: [_get(store, Want(setting, rival, seed)) for seed in setting.seeds] for rival in best}
        rival = max(finals, key=lambda one: fmean(run.score for run in finals[one]))
        name, theirs = rival.words, finals[rival]
    near = NEAR * fmean(run.score for run in theirs)
    row = Row(
        setting,
        name,
        tuple(run.score for run in theirs),
        tuple(run.score for run in ours),
        (_rounds(ours[: len(theirs)], near), _rounds(theirs, near)),
        _range(ours),
        median(run.first for run in ours),
        (),
    )
    return Row(**{**vars(row), "misses": tuple(_misses(axis, row, _range(theirs)))})


def _misses(axis: Axis, row: Row, honest: tuple[float, float] | None) -> list[str]:
    """What of the axis' target the row does not meet."""
    found = []
    if row.difference < -row.setting.target - 1e-9:
        found.append(f"{-row.difference:.2f} under")
    lowest = min(row.ours) - fmean(row.theirs)
    if axis.worst is not None and lowest < -axis.worst:
        found.append(f"one run {-lowest:.2f} under")
    if axis.late is not None:
        mine, its = row.rounds
        if its is not None and (mine is None or mine > its + axis.late):
            found.append("never at 95 %" if mine is None else f"{mine - its:.0f} rounds late")
    rates = row.rates if row.setting.method == "fedhyper-liars" else None
    if rates and honest and (rates[0] < honest[0] / RATIO**3 or rates[1] > honest[1] * RATIO):
        found.append("rates out of range")
    return found


def _get(store: Store, want: Want) -> Entry:
    entry = store.get(want)
    assert entry is not None, want.word
    return entry


def _rounds(runs: list[Entry], accuracy: float) -> float | None:
    firsts = [run.rounds_to(accuracy) for run in runs]
    known = [first for first in firsts if first is not None]
    return fmean(known) if known and len(known) == len(firsts) else None


def _range(runs: list[Entry]) -> tuple[float, float] | None:
    known = [run.rates for run in runs if run.rates]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
