"""The learning-rate-free start in the simulator, in the first round: clients vote for a rate, a panel checks it.

    vote   ten clients try rates, each by itself, and vote for their best (climbing.py, ``automatic.ladder``)
    check  the mean of their updates at each rate up to that, by its loss on a panel of many clients
    race   the rate that votes led to, the one below, and the panel's own: twelve rounds of each, up to 24 where few
           clients train in a round or none has gained enough to tell, and the panel says which is best. Its rounds are
           the first of the run. A shorter run is raced to its end, and further only if nobody has surely gained by then
    shape  in a run no longer than the longest race, seen to its end: global rates above 1, as long as the panel likes
           them better, and then a local rate that falls

A vote alone is blind where a client's examples are alike: with one class every rate, however high, lowers its own loss.
The panel alone is blind where a cohort's classes are few: one round at any useful rate raises the others' loss. And a
loss alone is blind where a model is right more often and far too sure of itself: so in the race the panel judges by the
task's score (accuracy, say), and by the loss where the score does not tell.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder
from fedhyper.averages import Model
from fedhyper.plan import Shape
from fedhyper.sim.climbing import Votes, climb
from fedhyper.sim.data.partition import Partition
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
    shape   how steps differ in a run that was seen to its end
    trials  local rounds beyond those of an ordinary run, all clients together; the panel's batches are not counted
    """

    votes: Votes
    shape: Shape = Shape()
    trials: int = 0


class Run(Protocol):
    """A run that starts here, at one rate; nothing of it is kept."""

    trials: int

    def step(self) -> Model | None:
        """What is kept after one round more; None: it had no usable update."""


class Judged(NamedTuple):
    """What each judge of a panel loses by a model, in units of the loss and of the task's score; below 0 is a gain."""

    loss: Sequence[float]
    score: Sequence[float]

    @property
    def gains(self) -> bool:
        """Whether it is better than what it is held against, on average."""
        return centre(self.loss)[0] < 0 or _surely_below(self.score)

    @property
    def surely_gains(self) -> bool:
        """Whether it is better by more than a standard error."""
        return self.surely_better_than(self._nothing)

    @property
    def surely_harms(self) -> bool:
        """Whether it is worse by more than that."""
        return self._nothing.surely_better_than(self)

    @property
    def _nothing(self) -> Judged:
        return Judged([0.0] * len(self.loss), [0.0] * len(self.score))

    def surely_better_than(self, other: Judged) -> bool:
        """By the score; where that does not tell, by the loss."""
        score = _differences(self.score, other.score)
        if _surely_below(score) or _surely_below([-value for value in score]):
            return _surely_below(score)
        return _surely_below(_differences(self.loss, other.loss))

    @classmethod
    def mean(cls, some: Sequence[Judged]) -> Judged:
        """Each judge's mean."""
        both = ([sum(judge) / len(some) for judge in zip(*values, strict=True)] for values in zip(*some, strict=True))
        return cls(*both)


class Panel:
    """Many clients, one batch each: how much each of them loses by another model than ``before``. Where clients are few
    and have several, no client has more judges than are left out at either end: batches beyond that share one."""

    def __init__(self, engine: Engine, tasks: Sequence[ClientTask], sent: Sent, before: Model) -> None:
        self._engine, self._tasks, self._sent = engine, tasks, sent
        self._judges = _judges([task.client for task in tasks])
        self._batches = _held(tasks, self._judges)
        self._before = self._losses(before.weights), self._scores(before)

    def _losses(self, weights: Tensor) -> list[float]:
        # an engine trains, so the loss before the step is what is read; a rate of 0 would be refused by torch.optim
        replies = self._engine.train(self._tasks, self._sent._replace(weights=weights, local_lr=1e-30))
        losses = [reply.first_loss for reply in replies]
        return [sum(losses[i] for i in some) / len(some) for some in self._judges]

    def _scores(self, model: Model) -> list[float]:
        asked = self._sent._replace(weights=model.weights, buffers=model.statistics)
        return [-score for score in self._engine.accuracy_by_client(asked, self._batches)]

    def loses(self, weights: Tensor) -> list[float]:
        """Of each judge, in units of the loss; below 0 is a gain."""
        return _differences(self._losses(weights), self._before[0])

    def judged(self, model: Model) -> Judged:
        """By loss and score."""
        return Judged(self.loses(model.weights), _differences(self._scores(model), self._before[1]))


def _differences(after: Sequence[float], before: Sequence[float]) -> list[float]:
    pairs = zip(after, before, strict=True)
    return [a - b if math.isfinite(a - b) else LOST for a, b in pairs]


def _held(tasks: Sequence[ClientTask], judges: Sequence[Sequence[int]]) -> Partition:
    """Each judge's examples, as an engine takes them."""
    held = [np.concatenate([batch for i in some for batch in tasks[i].batches]) for some in judges]
    return Partition("panel", np.concatenate(held), np.cumsum([0, *map(len, held)]))


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
    cohort = next(cohorts)
    first = climb(engine, cohort, sent, ladder, share)
    votes, trials = list(first.votes), first.trials
    while len(votes) < ladder.voices and (others := next(cohorts, None)) is not None:
        more = climb(engine, others, sent, ladder)
        votes, trials = [*votes, *more.votes], trials + more.trials
    voted = ladder.voted([rung for rung, _ in votes])
    below = {rung: mean for rung, mean in first.means.items() if voted is None or rung <= voted}
    seen = {rung: centre(panel.loses(sent.weights - mean))[0] for rung, mean in below.items()}
    gain, even = median_low([gain for _, gain in votes]) if votes else 0.0, Shape()

    def enter(rung: int, shape: Shape = even) -> Entrant:
        return Entrant(run(Start(((rung, gain),) * ladder.voices, shape)), panel)

    after, whole = lengths(ladder, rounds, len(cohort)), rounds if rounds <= ladder.ahead else 0
    raced = race(ladder.candidates(voted, seen), voted, enter, ENOUGH * gain, after, whole)
    trials += raced.trials
    if raced.best is None or raced.winner is None:
        return Start((), trials=trials)
    best, shape, winner = raced.best, even, raced.winner
    if raced.rounds <= rounds <= after[-1]:
        trials -= winner.run.trials
        judged = winner.judged(rounds)
        trials += winner.run.trials
        if judged is not None:
            best, shape, cost = shaped(raced.best, judged, rounds, enter)
            trials += cost
    return Start(((best, gain),) * ladder.voices, shape, trials)


class Entrant:
    """A run in the race, and what the panel loses by its last rounds."""

    def __init__(self, run: Run, panel: Panel) -> None:
        self.run = run
        self._panel = panel
        self._done = 0
        self._judged: list[Judged] = []
        self._dead = False

    def judged(self, rounds: int) -> Judged | None:
        """Each judge's mean over the last of so many rounds; None once a round had no usable update."""
        last = min(JUDGED, math.ceil(rounds / 4))
        while self._done < rounds and not self._dead:
            model = self.run.step()
            self._done += 1
            self._dead = model is None
            if model is not None and self._done > rounds - last:
                self._judged.append(self._panel.judged(model))
        return None if self._dead else Judged.mean(self._judged[-last:])


def lengths(ladder: Ladder, rounds: int, clients: int) -> list[int]:
    """Rounds after which a race is judged, until it tells: ``ahead`` of them, more where fewer than ``voices`` clients
    train in a round, or all of the run; doubled, up to 2 · ``ahead``.

    Long enough to see what the server's momentum, which grows over eight rounds, makes of a rate; but a run of three
    rounds ends before that, and the rate that is best in twelve is too low for it. The fewer clients, the less a round
    tells: with three a round twelve rounds prefer a rate that 24 do not.
    """
    most = 2 * ladder.ahead
    enough = min(max(ladder.ahead, ladder.ahead * ladder.voices // max(clients, 1)), most)
    found = [min(enough, rounds) if rounds else enough]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
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
    (Tried and worse: the loss alone, by up to 88 points where clients are few and so are their classes; the last round
    alone, which tells nothing once a panel's loss is near 0; going up beyond the vote in a run that goes on; going down
    while none surely gains, which ends at a rate that does nothing; a race that ends with the first sure gain, however
    small, in a run that goes on, which with two classes a client was a rung too low; the newest weights instead of the
    mean that is kept, which with one client a round are those of the client that came last.)
    """
    runs, judged = {rung: enter(rung) for rung in rungs}, 0
    highest = max(rungs, default=0) if voted is None else voted
    while runs:
        rounds, over = lengths[judged], lengths[judged] == whole
        ends = {rung: end for rung, one in runs.items() if (end := one.judged(rounds)) is not None}
        best, nearby = min(runs), {min(runs) - 1}
        if ends:
            best = _best(ends)
            gained = any(end.surely_gains for end in ends.values())
            told = gained if over else _surely_below([loss + enough for loss in ends[best].loss])
            if not told and judged < len(lengths) - 1:
                judged += 1
                continue
            if not ends[best].surely_harms:
                nearby = {best - 1, min(best + 1, HIGHEST if over else highest)} if ends[best].gains else set()
        joining = {rung for rung in nearby if rung >= LOWEST} - set(runs)
        if not joining:
            if voted is not None and highest in ends and not ends[best].surely_better_than(ends[highest]):
                best = highest
            trials = sum(one.run.trials for one in runs.values())
            return Raced(best, runs[best], rounds, trials)
        runs |= {rung: enter(rung) for rung in joining}
    return Raced(None, None, 0, 0)


def _best(ends: Mapping[int, Judged]) -> int:
    """The rung with the lowest loss, unless the one with the highest score is surely better; of equals the lowest."""
    by_loss = Ladder.best({rung: centre(end.loss)[0] for rung, end in ends.items()})
    by_score = Ladder.best({rung: centre(end.score)[0] for rung, end in ends.items()})
    return by_score if ends[by_score].surely_better_than(ends[by_loss]) else by_loss


def shaped(top: int, seen: Judged, rounds: int, enter: Callable[[int, Shape], Entrant]) -> tuple[int, Shape, int]:
    """The rung, the shape of its steps in a run that is seen to its end, and how many local rounds it took to find.

    First longer steps: a global rate of √r, r, r√r, … at the rung that won the race, ``top``, or at the one below, as
    long as that is surely better than ``seen``. If there were any, the last need not be as long: then a local rate that
    falls by a rung, two, … till the last round, with that global rate or half a rung more. Only for a run that is seen
    to its end: long steps may do harm later. (Tried and worse: longer steps at the same rung alone; at ever lower ones,
    which trades one rate for the other and ends at 1e4 and 3e-5; whole rungs, which are too far apart where three
    rounds decide; quarters, which are not surely better than one another. No better: the first twelve rounds of a run
    of 40 or 120; a run of 18 raced to its end as one of 12 is; to look on behind a global rate that is no better; a
    fall where no longer step was better.)
    """
    at, trials = (top, Shape()), 0
    for nearby in (_longer, _falling):
        while tried := nearby(top, *at, rounds):
            runs = [enter(*one) for one in tried]
            ends = {i: end for i, one in enumerate(runs) if (end := one.judged(rounds)) is not None}
            trials += sum(one.run.trials for one in runs)
            if not ends or not ends[won := _best(ends)].surely_better_than(seen):
                break
            at, seen = tried[won], ends[won]
    return (*at, trials)


def _longer(top: int, _: int, shape: Shape, rounds: int) -> list[tuple[int, Shape]]:
    longer = Shape(shape.lift + 1, 0, rounds)
    rungs = range(max(top - 1, LOWEST), top + 1)
    return [(rung, longer) for rung in rungs if longer.lift <= 2 * HIGHEST]  # only so that it ends


def _falling(_: int, best: int, shape: Shape, rounds: int) -> list[tuple[int, Shape]]:
    fall = shape.fall + 1
    lifts = (shape.lift, shape.lift + 1) if shape.lift and best - fall >= LOWEST else ()
    return [(best, Shape(lift, fall, rounds)) for lift in lifts]


def _surely_below(values: Sequence[float]) -> bool:
    mean, error = centre(values)
    return mean + error < 0
