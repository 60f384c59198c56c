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
from collections.abc import Sequence
from typing import Any

from fedhyper.arrays import Array, each, in_pieces, inner, is_number, plus
from fedhyper.automatic.auto import auto
from fedhyper.automatic.tries import PART, Tries, gains_of
from fedhyper.averages import Averaging
from fedhyper.guard import NORM_CAP, all_finite, bounded, fair_weights, judging_weights, not_against
from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
from fedhyper.optimizers import ServerOptimizer
from fedhyper.plan import Plan


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
        if not (is_number(rounds) and 0 <= rounds < math.inf):
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
        loss: float | Sequence[float] | None = None,
        train_loss: Sequence[float] | None = None,
        examples: Sequence[float] | None = None,
        sq_norm: float | None = None,
        statistics: Array | None = None,
    ) -> Decision:
        """One round. What was done comes back: ``action`` is "step", "rollback" or "idle".

        update      before − after: a list with one for each client (none that is not finite is used), or their mean
        loss        each client's loss at the weights it was sent, before it trained, or their mean; None: not known.
                    Of one batch where ten clients or so answer; over all its data where few do: three that reported
                    one batch's ended at 8 to 89 % on digits, and at 95 with all of it
        train_loss  each client's mean loss over its local steps, which says which of ``rates`` was best
        examples    each client's weight in the means, at most ten medians of the round; None: all alike
        sq_norm     with a mean: the mean of the clients' |before − after|², if you know it
        statistics  each client's statistics after it trained, or their mean; None: they stay what they were
        """
        rungs, self._rungs = self._rungs, []
        if not self._is_list_of_clients(update):
            losses = () if loss is None else (float(loss),) if is_number(loss) else tuple(map(float, loss))  # type: ignore[arg-type]
            usable = all_finite(update)
            report = RoundReport(update if usable else None, losses, sq_norm, statistics, refused=not usable)
        else:
            ladder, near, votes = self.loop.plan.ladder, list(range(len(update))), None
            last = self.rounds > 0 and self.round + 1 >= self.rounds // PART
            if ladder is not None and rungs and train_loss is not None:
                before = [None] * len(rungs) if loss is None or is_number(loss) else list(map(float, loss))  # type: ignore[arg-type]
                gains = gains_of(rungs, list(map(float, train_loss)), before, self.state.plan.first)
                votes = tuple(zip(rungs, gains, strict=True))
                known = self.state.plan.tried
                near = sorted(Tries(ladder, (*known, *votes), short=last and not known).used(rungs, gains))
            rates = None if votes is None or ladder is None else [ladder.rate(rung) for rung in rungs]
            report = summed_up(list(update), loss, examples, near, statistics, rates, self.norm_cap)
            report = report._replace(votes=votes, enough=last)
        self.state, decision = self.loop.update(self.state, report)
        return decision

    def _is_list_of_clients(self, update: Array) -> bool:
        if not isinstance(update, (list, tuple)):
            return False
        # a model in a list: one update is a list of arrays, the clients' a list of such lists
        return not isinstance(self.weights, (list, tuple)) or not update or in_pieces(update[0])

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
    updates: list[Array],
    losses: float | Sequence[float] | None,
    examples: Sequence[float] | None,
    near: Sequence[int],
    statistics: Sequence[Array] | None,
    rates: Sequence[float] | None,
    norm_cap: float,
) -> RoundReport:
    """The means over the clients whose update is finite: of those ``near``, which tried no rate far from the best.

    None of them weighs more than its share: where they tried ``rates`` out, a length counts in units of its rate.
    """
    shares = [1.0] * len(updates) if examples is None else [float(share) for share in examples]
    if len(shares) != len(updates):
        raise ValueError(f"examples has {len(shares)} numbers for {len(updates)} updates; give one for each client")
    if any(not 0 <= share < math.inf for share in shares):
        raise ValueError(f"examples must be finite numbers of at least 0, got {shares}")
    given = [] if losses is None else [float(losses)] if is_number(losses) else list(map(float, losses))  # type: ignore[arg-type]
    if len(given) not in (0, len(updates)) and not is_number(losses):
        raise ValueError(f"loss has {len(given)} numbers for {len(updates)} updates; give one for each client")
    usable = [i for i in near if shares[i] > 0 and all_finite(updates[i])]
    refused = 0 if rates is not None else len(updates) - len(usable)  # rates tried out may well have been too high
    if not usable:
        return RoundReport(losses=tuple(given), refused=refused)
    squares = [float(inner(updates[i], updates[i])) for i in usable]
    fair = [shares[i] for i in usable]
    if norm_cap:
        lengths = [math.sqrt(sq) / (1.0 if rates is None else rates[i]) for i, sq in zip(usable, squares, strict=True)]
        fair = fair_weights(fair, lengths, norm_cap)
        judging = judging_weights(fair, [math.sqrt(square) for square in squares])
        mean = _mean(updates, _parts(usable, judging))
        along = [sum(judging) * float(inner(updates[i], mean)) for i in usable]
        fair, squares = not_against(fair, squares, along), bounded(squares, norm_cap**2)
    parts = _parts(usable, fair)
    delta = _mean(updates, parts)
    sq_norm = sum(part * sq for part, sq in zip(parts.values(), squares, strict=True))
    averaged = None if statistics is None else _mean(statistics, parts)
    return RoundReport(delta, tuple(given), sq_norm, averaged, refused=refused)


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
