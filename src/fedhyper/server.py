"""``Server``: the server's side of a loop of your own, in the manner of ``torch.optim``.

    server = Server(weights)                                     # learning-rate-free, unless you name a plan
    for t in range(rounds):
        cohort = sample(clients)
        replies = [train(server.weights, c, lr) for c, lr in zip(cohort, server.rates(len(cohort)))]
        server.step([update of each], loss=[before it trained], train_loss=[mean of its local steps])
    evaluate(server.averaged)

In the first round, or rounds where few clients take part, the clients try different rates out, which is what
``train_loss`` is for, and the weights wait; from then on all of ``server.rates(n)`` are ``server.local_lr``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedhyper.arrays import Array, each, in_pieces, inner, is_number, plus
from fedhyper.automatic.auto import auto
from fedhyper.automatic.tries import PART, Tries, gains_of
from fedhyper.averages import Averaging
from fedhyper.guard import NORM_CAP, all_finite, bounded, fair_weights, judging_weights, not_against
from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
from fedhyper.optimizers import ServerOptimizer
from fedhyper.plan import Plan

Losses = float | Sequence[float | None] | None


class Server:
    """Both rates, momentum, rollback and the mean of the last rounds around one model: ``loop`` and its state.

    weights     the model: one array, or a list or dict of arrays; NumPy or torch. Never written to
    plan        decides the rates; None: ``auto()``, learning-rate-free
    optimizer   makes a step of the clients' mean update; None: the plan's own choice
    average     what ``averaged`` is; None: the plan's own choice
    statistics  averaged and never stepped, such as BatchNorm's, in the form of ``weights``; 0.0: there are none
    norm_cap    strongest pull of a client (weight × length of its update), in medians of the round; raising it cuts
                less, 0 cuts nothing, nor does any rule of ``fedhyper.guard``. Only where ``step`` is given each update
    rounds      how many there will be: at most a fifth of them is spent on trying rates out; 0: nobody knows
    """

    def __init__(
        self,
        weights: Array,
        plan: Plan | None = None,
        *,
        optimizer: ServerOptimizer | None = None,
        average: Averaging | None = None,
        statistics: Array = 0.0,
        norm_cap: float = NORM_CAP,
        rounds: int = 0,
    ) -> None:
        if not (is_number(norm_cap) and 0 <= norm_cap < math.inf):
            raise ValueError(f"norm_cap must be a finite number of at least 0, got {norm_cap!r}")
        if not (isinstance(rounds, int) and not isinstance(rounds, bool) and rounds >= 0):
            raise ValueError(f"rounds must be a whole number of at least 0, got {rounds!r}")
        self.norm_cap, self.rounds = norm_cap, rounds
        self.loop = ServerLoop(auto() if plan is None else plan, optimizer, average)
        self.state: LoopState = self.loop.init(weights, statistics)
        self._rungs: list[int] = []  # what the clients of this round try out

    @property
    def weights(self) -> Array:
        """What to send to the clients of the next round."""
        return self.state.now.weights

    @property
    def averaged(self) -> Array:
        """What to evaluate and to keep: a mean of the last rounds' weights where the plan asks for one."""
        return self.state.mean.weights

    @property
    def local_lr(self) -> float:
        """The rate for the clients of the next round."""
        return self.state.local_lr

    @property
    def global_lr(self) -> float:
        """The rate the last step was multiplied with."""
        return self.state.plan.global_lr

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.state.round

    def rates(self, clients: int) -> list[float]:
        """A local rate for each of the clients of the next round: different ones while the plan has them tried out."""
        ladder = self.loop.plan.ladder
        if not self.state.climbs or ladder is None:
            return [self.local_lr] * clients
        self._rungs = Tries(ladder, self.state.plan.tried).spread(clients)
        return [ladder.rate(rung) for rung in self._rungs]

    def step(
        self,
        update: Array,
        *,
        loss: Losses = None,
        train_loss: Sequence[float | None] | None = None,
        examples: Sequence[float | None] | None = None,
        sq_norm: float | None = None,
        statistics: Array | None = None,
    ) -> Decision:
        """One round. What was done comes back: ``action`` is "step", "rollback" or "idle".

        update      before − after, in the shape of the weights: a list with one for each client (none that is not
                    finite is used), or their mean; None in that list, and in the others, stands for a client that did
                    not answer, None alone for nobody
        loss        each client's loss at the weights it was sent, before it trained, or their mean; None: not known.
                    Of one batch where ten clients or so answer; over all its data where few do: three that reported
                    one batch's ended at 8 to 89 % on digits, and at 95 with all of it
        train_loss  each client's mean loss over its local steps, which says which of ``rates`` was best
        examples    each client's weight in the means, at most ten medians of the round; None: all alike
        sq_norm     with a mean: the mean of the clients' |before − after|², if you know it
        statistics  each client's statistics after it trained, or their mean; None: they stay what they were
        """
        if getattr(loss, "ndim", None) == 0:  # a mean as NumPy and torch have it
            loss = float(loss)  # type: ignore[arg-type]
        if update is None:
            report = RoundReport()
        elif not self._is_list_of_clients(update):
            self._check_shape(update)
            usable = all_finite(update)
            losses = tuple(_known([loss] if loss is None or isinstance(loss, (int, float)) else loss))
            report = RoundReport(update if usable else None, losses, sq_norm, statistics, refused=not usable)
        else:
            for one in update:
                if one is not None:
                    self._check_shape(one)
            report = self._report(list(update), loss, train_loss, examples, statistics)
        self._rungs = []  # only now: a call that is refused can be made again
        self.state, decision = self.loop.update(self.state, report)
        return decision

    def _report(
        self,
        updates: list[Array],
        loss: Losses,
        train_loss: Losses,
        examples: Sequence[float | None] | None,
        statistics: Sequence[Array] | None,
    ) -> RoundReport:
        """What the clients' replies come to."""
        n, ladder, rungs, votes = len(updates), self.loop.plan.ladder, self._rungs, None
        first, mean = _of_each("loss", loss, n), _of_each("train_loss", train_loss, n)
        if rungs and n != len(rungs):
            raise ValueError(f"{n} updates for the {len(rungs)} clients of rates(); put None where one did not answer")
        near, last = list(range(n)), self.rounds > 0 and self.round + 1 >= self.rounds // PART
        answered = [i for i in near if rungs and updates[i] is not None]
        told = [i for i in answered if mean[i] is not None]
        if 2 * len(told) <= len(answered):  # nobody can tell: those who moved least, as in Flower
            finite = [i for i in answered if all_finite(updates[i])]
            near = sorted(finite, key=lambda i: rungs[i])[: 3 if len(finite) > 2 else 1] or answered if rungs else near
        elif ladder is not None:
            tried = [rungs[i] for i in told]
            gains = gains_of(tried, [mean[i] for i in told], [first[i] for i in told], self.state.plan.first)  # type: ignore[misc]
            votes, known = tuple(zip(tried, gains, strict=True)), self.state.plan.tried
            used = Tries(ladder, (*known, *votes), short=last and not known).used(tried, gains)
            near = sorted(told[i] for i in used)
        rates = None if votes is None or ladder is None else [ladder.rate(rung) for rung in rungs]
        losses = [float(loss)] if isinstance(loss, (int, float)) else _known(first)
        before = None if statistics is None else self.state.now.statistics
        means = summed_up(updates, examples, near, rates, self.norm_cap, statistics, before)
        return means._replace(losses=tuple(losses), votes=votes, enough=last)

    def _check_shape(self, update: Array) -> None:
        found, wanted = _shape(update), _shape(self.weights)
        if found != wanted:
            raise ValueError(
                f"an update has the shape {found}, the weights have {wanted}; "
                "give a list with one update for each client, or their mean"
            )

    def _is_list_of_clients(self, update: Array) -> bool:
        if not isinstance(update, (list, tuple)):
            return False
        # a model in a list: one update is a list of arrays, the clients' a list of such lists
        first = next((one for one in update if one is not None), None)
        return not isinstance(self.weights, (list, tuple)) or first is None or in_pieces(first)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and arrays: what to save."""
        plain: dict[str, Any] = _to_plain(self.state)
        return plain

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of a server with the same settings, to the same bits."""
        state: LoopState = _from_plain(saved, self.state)
        rates = (state.plan.global_lr, state.plan.local_lr)
        if not all(is_number(rate) and 0 < rate < math.inf for rate in rates):
            raise ValueError(f"the rates of a saved state must be finite numbers above 0, got {rates}")
        self.state = state


def summed_up(
    updates: Sequence[Array],
    examples: Sequence[float | None] | None,
    near: Sequence[int],
    rates: Sequence[float] | None,
    norm_cap: float,
    statistics: Sequence[Array] | None = None,
    before: Array = None,
) -> RoundReport:
    """The means over the clients whose update, and statistics, can be used: of those ``near``, which tried no rate far
    from the best.

    None of them weighs more than its share: where they tried ``rates`` out, a length counts in units of its rate; of
    ``statistics`` it is the way from ``before`` that counts.
    """
    shares = [1.0] * len(updates) if examples is None else [float(share or 0.0) for share in examples]
    if len(shares) != len(updates):
        raise ValueError(f"examples has {len(shares)} numbers for {len(updates)} updates; give one for each client")
    if any(not 0 <= share < math.inf for share in shares):
        raise ValueError(f"examples must be finite numbers of at least 0, got {shares}")
    if statistics is not None and len(statistics) != len(updates):
        raise ValueError(f"statistics has {len(statistics)} for {len(updates)} updates; give one for each client")
    came = [i for i in near if updates[i] is not None]
    squares = {i: _square(updates[i]) for i in came}
    drifts = {i: 0.0 if statistics is None else _square(plus(statistics[i], -1.0, before)) for i in came}
    usable = [i for i in came if shares[i] > 0 and squares[i] < math.inf and drifts[i] < math.inf]
    endless = sum(squares[i] + drifts[i] == math.inf for i in came)
    refused = 0 if rates is not None else endless  # rates tried out may well have been too high
    if not usable:
        return RoundReport(refused=refused)
    fair, measured = [shares[i] for i in usable], [squares[i] for i in usable]
    if norm_cap:
        lengths = [math.sqrt(squares[i]) / (1.0 if rates is None else rates[i]) for i in usable]
        drifted = fair_weights(fair, [math.sqrt(drifts[i]) for i in usable], norm_cap)
        fair = list(map(min, fair_weights(fair, lengths, norm_cap), drifted))
        judging = judging_weights(fair, [math.sqrt(square) for square in measured])
        mean = _mean(updates, _parts(usable, judging))
        along = [sum(judging) * float(inner(updates[i], mean)) for i in usable]
        fair, measured = not_against(fair, measured, along), bounded(measured, norm_cap**2)
    parts = _parts(usable, fair)
    sq_norm = sum(part * square for part, square in zip(parts.values(), measured, strict=True))
    averaged = None if statistics is None else _mean(statistics, parts)
    return RoundReport(_mean(updates, parts), sq_norm=sq_norm, statistics=averaged, refused=refused)


def _shape(a: Array) -> Any:
    """The shape of an array, the shapes of one in pieces."""
    if isinstance(a, dict):
        return {key: _shape(piece) for key, piece in a.items()}
    return list(map(_shape, a)) if isinstance(a, (list, tuple)) else tuple(getattr(a, "shape", ()))


def _square(array: Array) -> float:
    """|array|²; inf where a number of it is not finite, or the sum is not."""
    square = float(inner(array, array)) if all_finite(array) else math.inf
    return square if math.isfinite(square) else math.inf


def _of_each(name: str, values: Losses, clients: int) -> list[float | None]:
    """A number for each client; None where it said nothing."""
    if values is None or isinstance(values, (int, float)):
        return [None] * clients
    found = [None if value is None else float(value) for value in values]
    if len(found) != clients:
        raise ValueError(f"{name} has {len(found)} numbers for {clients} updates; give one for each client")
    return found


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _parts(usable: Sequence[int], weights: Sequence[float]) -> dict[int, float]:
    total = sum(weights)
    return {i: weight / total for i, weight in zip(usable, weights, strict=True)}


def _mean(values: Sequence[Array], parts: dict[int, float]) -> Array:
    (first, part), *rest = parts.items()
    mean = each(lambda x: x * part, values[first])
    for i, part in rest:
        mean = plus(mean, part, values[i])
    return mean


def _to_plain(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return {name: _to_plain(item) for name, item in value._asdict().items()}
    return tuple(map(_to_plain, value)) if type(value) is tuple else value


def _from_plain(value: Any, like: Any) -> Any:
    if hasattr(like, "_fields"):
        if not isinstance(value, dict) or set(value) != set(like._fields):
            keys = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"a saved {type(like).__name__} has the keys {', '.join(like._fields)}, got {keys}")
        return type(like)(**{name: _from_plain(value[name], getattr(like, name)) for name in like._fields})
    if type(like) is not tuple:
        return value
    models = [*like, *[None] * (len(value) - len(like))]  # a plain tuple may grow
    return tuple(_from_plain(item, model) for item, model in zip(value, models, strict=False))
