"""The learning-rate-free start in the simulator, in the first round: clients vote for a rate, a panel checks it.

    vote   ten clients try rates, each by itself, and vote for their best (climbing.py, ``automatic.ladder``)
    check  the mean of their updates at each rate up to that, by its loss on a panel of many clients
    race   the rate that votes led to, the one below, and the panel's own: twelve rounds of each, or 24 if by then none
           has gained enough to tell, and the panel says which is best. Its rounds are the first of the run. A shorter
           run is raced to its end, and further only if nobody has surely gained by then
    lift   in a run no longer than the longest race, seen to its end: global rates above 1, as long as the panel likes
           them better

A vote alone is blind where a client's examples are alike: with one class every rate, however high, lowers its own loss.
The panel alone is blind where a cohort's classes are few: one round at any useful rate raises the others' loss.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import NamedTuple, Protocol

from torch import Tensor

from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder
from fedhyper.sim.climbing import Votes, climb
from fedhyper.sim.engines.base import ClientTask, Engine, Sent

JUDGED = 3  # rounds, the last ones of a race, that a panel judges: where a rate leads to, not how it got there; of
# fewer than nine rounds the last quarter
ENOUGH = 0.5  # of what a client gains by itself in its best first round: a race in which nobody gains that goes on
LOST = 1e30  # what a loss that is not a number counts as; finite, so that differences are numbers
TENTH = 10  # of a panel one judge in so many is left out at either end
PANEL = 50  # batches that judge, of as many clients if there are; raising it costs time


class Start(NamedTuple):
    """Where a run begins.

    votes   the rung that was found, with what the median client gained, as often as ``Ladder.voices`` asks; () if none
    lift    rungs by which the global rate is above 1, in a run that was seen to its end
    trials  local rounds beyond those of an ordinary run, all clients together; the panel's batches are not counted
    """

    votes: Votes
    lift: int = 0
    trials: int = 0


class Run(Protocol):
    """A run that starts here, at one rate; nothing of it is kept."""

    trials: int

    def step(self) -> Tensor | None:
        """What is kept after one round more; None: it had no usable update."""


class Panel:
    """Many clients, one batch each: how much each of them loses by other weights than ``before``. Where clients are few
    and have several, no client has more judges than are left out at either end: batches beyond that share one."""

    def __init__(self, engine: Engine, tasks: Sequence[ClientTask], sent: Sent, before: Tensor) -> None:
        self._engine, self._tasks, self._sent = engine, tasks, sent
        self._judges = _judges([task.client for task in tasks])
        self._before = self._losses(before)

    def _losses(self, weights: Tensor) -> list[float]:
        # an engine trains, so the loss before the step is what is read; a rate of 0 would be refused by torch.optim
        replies = self._engine.train(self._tasks, self._sent._replace(weights=weights, local_lr=1e-30))
        losses = [reply.first_loss for reply in replies]
        return [sum(losses[i] for i in some) / len(some) for some in self._judges]

    def loses(self, weights: Tensor) -> list[float]:
        """Of each judge, in units of the loss; below 0 is a gain."""
        pairs = zip(self._losses(weights), self._before, strict=True)
        return [after - before if math.isfinite(after - before) else LOST for after, before in pairs]

    def surely_gains(self, weights: Tensor) -> bool:
        """Whether they are better by more than a standard error."""
        return _surely_below(self.loses(weights))


def _judges(clients: Sequence[int]) -> list[list[int]]:
    """Which batches, by whose they are, are one judge together: no client is more than a tenth of them, where there are
    ten clients."""
    counts = Counter(clients).values()
    most = max(counts, default=0)
    while len(counts) >= TENTH and most > sum(min(count, most) for count in counts) // TENTH:
        most -= 1
    judges, seen = defaultdict[tuple[int, int], list[int]](list), Counter[int]()
    for i, client in enumerate(clients):
        judges[client, seen[client] % most].append(i)
        seen[client] += 1
    return list(judges.values())


def centre(values: Sequence[float]) -> tuple[float, float]:
    """Mean without the tenth at either end, so that one liar of ten has no say, and its standard error."""
    ordered, out = sorted(values), len(values) // TENTH
    kept = ordered[out : len(ordered) - out]
    mean = sum(kept) / len(kept)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in kept)) / len(kept)


def find_start(
    engine: Engine,
    sent: Sent,
    ladder: Ladder,
    cohorts: Iterator[Sequence[ClientTask]],
    share: Callable[[ClientTask], float],
    panel: Panel,
    run: Callable[[Start], Run],
    rounds: int = 0,
) -> Start:
    """``cohorts``: who votes in this round and, if these are few, in the next; ``run``: one that begins so;
    ``rounds``: how many there will be, 0 if nobody knows.
    """
    first = climb(engine, next(cohorts), sent, ladder, share)
    votes, trials = list(first.votes), first.trials
    while len(votes) < ladder.voices and (cohort := next(cohorts, None)) is not None:
        more = climb(engine, cohort, sent, ladder)
        votes, trials = [*votes, *more.votes], trials + more.trials
    voted = ladder.voted([rung for rung, _ in votes])
    below = {rung: mean for rung, mean in first.means.items() if voted is None or rung <= voted}
    seen = {rung: centre(panel.loses(sent.weights - mean))[0] for rung, mean in below.items()}
    gain = median_low([gain for _, gain in votes]) if votes else 0.0

    def enter(rung: int, lift: int = 0) -> Entrant:
        return Entrant(run(Start(((rung, gain),) * ladder.voices, lift)), panel)

    after, whole = lengths(ladder.ahead, rounds), rounds if rounds <= ladder.ahead else 0
    raced = race(ladder.candidates(voted, seen), voted, enter, ENOUGH * gain, after, whole)
    trials += raced.trials
    if raced.best is None or raced.winner is None:
        return Start((), trials=trials)
    best, lift, winner = raced.best, 0, raced.winner
    if raced.rounds <= rounds <= after[-1]:
        trials -= winner.run.trials
        lost = winner.lost(rounds)
        trials += winner.run.trials
        if lost is not None:
            best, lift, cost = lifted(raced.best, lost, rounds, enter)
            trials += cost
    return Start(((best, gain),) * ladder.voices, lift, trials)


class Entrant:
    """A run in the race, and what the panel loses by its last rounds."""

    def __init__(self, run: Run, panel: Panel) -> None:
        self.run = run
        self._panel = panel
        self._done = 0
        self._judged: list[list[float]] = []
        self._dead = False

    def lost(self, rounds: int) -> list[float] | None:
        """Each judge's mean over the last of so many rounds; None once a round had no usable update."""
        last = min(JUDGED, math.ceil(rounds / 4))
        while self._done < rounds and not self._dead:
            weights = self.run.step()
            self._done += 1
            self._dead = weights is None
            if weights is not None and self._done > rounds - last:
                self._judged.append(self._panel.loses(weights))
        ends = self._judged[-last:]
        return None if self._dead else [sum(judge) / len(ends) for judge in zip(*ends, strict=True)]


def lengths(ahead: int, rounds: int) -> list[int]:
    """Rounds after which a race is judged, until it tells: ``ahead``, or all of the run, doubled up to 2 · ``ahead``.

    Long enough to see what the server's momentum, which grows over eight rounds, makes of a rate; but a run of three
    rounds ends before that, and the rate that is best in twelve is too low for it.
    """
    found = [min(ahead, rounds) if rounds else ahead]
    while found[-1] < 2 * ahead:
        found.append(min(2 * found[-1], 2 * ahead))
    return found


class Raced(NamedTuple):
    """How a race ended: the best rung and its run, None without any; after how many rounds that was said; local rounds
    that all of it took."""

    best: int | None
    winner: Entrant | None
    rounds: int
    trials: int


def race(
    rungs: Sequence[int],
    voted: int | None,
    enter: Callable[[int], Entrant],
    enough: float,
    lengths: Sequence[int],
    whole: int = 0,
) -> Raced:
    """The rung whose run a panel likes best.

    It is judged after each of ``lengths``, until one of the runs has surely gained ``enough``: where clients have few
    classes the first rounds tell nothing, or look harmful at every useful rate. The neighbours of the best join, though
    none above what was voted for, and ``voted`` stands unless another is better by more than a standard error. After
    ``whole`` rounds the run is over: there any sure gain tells, and higher ones join, too, for nothing comes later.
    Where even the best surely does harm, ever lower ones join until one does not: no run begins at a rate of which its
    own panel says, after the longest look, that the first weights are better.
    (Tried and worse: the last round alone, which tells nothing once a panel's loss is near 0; going up beyond the vote
    in a run that goes on; going down while none surely gains, which ends at a rate that does nothing; a race that ends
    with the first sure gain, however small, in a run that goes on, which with two classes a client was a rung too low;
    the newest weights instead of the mean that is kept, which with one client a round are those of the client that came
    last.)
    """
    runs, judged = {rung: enter(rung) for rung in rungs}, 0
    highest = max(rungs, default=0) if voted is None else voted
    while runs:
        rounds, over = lengths[judged], lengths[judged] == whole
        lost = {rung: one.lost(rounds) for rung, one in runs.items()}
        scores = {rung: math.inf if one is None else centre(one)[0] for rung, one in lost.items()}
        best = Ladder.best(scores)
        of_best = lost[best]
        if of_best is None:
            nearby = {min(runs) - 1}
        elif judged < len(lengths) - 1 and not _told(lost.values() if over else [of_best], 0.0 if over else enough):
            judged += 1
            continue
        elif _surely_below([-loss for loss in of_best]):
            nearby = {min(runs) - 1}
        else:
            nearby = {best - 1, min(best + 1, HIGHEST if over else highest)} if scores[best] < 0 else set()
        joining = {rung for rung in nearby if rung >= LOWEST} - set(runs)
        if not joining:
            of_voted = lost.get(highest) if voted is not None else None
            if of_best is not None and of_voted is not None:
                better = _surely_below([a - b for a, b in zip(of_best, of_voted, strict=True)])
                best = best if better else highest
            trials = sum(one.run.trials for one in runs.values())
            return Raced(best, runs[best], rounds, trials)
        runs |= {rung: enter(rung) for rung in joining}
    return Raced(None, None, 0, 0)


def lifted(top: int, lost: Sequence[float], rounds: int, enter: Callable[[int, int], Entrant]) -> tuple[int, int, int]:
    """The rung, by how many rungs the global rate is above 1, and how many local rounds it took to find that.

    A global rate of r, r², … at the rung that won the race, ``top``, or at the one below, while that is surely better
    than ``lost``. Only for a run that is seen to its end: such steps may do harm later. (Tried and worse: the same rung
    alone; ever lower ones, which trades one rate for the other and ends at 1e4 and 3e-5. No better: the first twelve
    rounds of a run of 40 or 120; a run of 18 raced to its end as one of 12 is.)
    """
    best, lift, trials = top, 0, 0
    while lift < HIGHEST:  # only so that it ends
        runs = {rung: enter(rung, lift + 1) for rung in range(max(top - 1, LOWEST), top + 1)}
        ends = {rung: end for rung, one in runs.items() if (end := one.lost(rounds)) is not None}
        trials += sum(one.run.trials for one in runs.values())
        longer = min(ends, key=lambda rung: centre(ends[rung]), default=None)
        if longer is None or not _surely_below([a - b for a, b in zip(ends[longer], lost, strict=True)]):
            break
        best, lift, lost = longer, lift + 1, ends[longer]
    return best, lift, trials


def _told(runs: Iterable[Sequence[float] | None], enough: float) -> bool:
    """Whether one of them has surely gained so much."""
    return any(_surely_below([loss + enough for loss in one]) for one in runs if one is not None)


def _surely_below(values: Sequence[float]) -> bool:
    mean, error = centre(values)
    return mean + error < 0
