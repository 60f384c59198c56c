"""How the clients of a round are put into stacks."""

from __future__ import annotations

from collections.abc import Sequence

# A step of a stack of n clients takes a + b · n µs: softmax regression on MNIST, batches of 10, a core of an AMD EPYC.
_STEP, _CLIENT = 28, 11


def cost(steps: Sequence[int]) -> int:
    """About how many µs a stack takes whose clients make so many local steps each, most first."""
    return _STEP * steps[0] + _CLIENT * sum(steps) if steps else 0


def cut(steps: Sequence[int], count: int, largest: int) -> list[Sequence[int]]:
    """Positions in ``steps`` (the clients' local steps, most first): ``count`` stacks that take about as long.

    More of them where they would have more than ``largest`` clients, fewer where there are no more clients.
    """
    count *= max(1, -(-len(steps) // (count * largest)))
    low, high = cost(steps) // count, cost(steps)
    while high - low > 1 + high // 100:  # down to the lowest cost with which that many are enough
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(steps, middle, largest)) <= count else (middle, high)
    return _filled(steps, high, largest)


def _filled(steps: Sequence[int], most: int, largest: int) -> list[Sequence[int]]:
    """As many clients in each stack as it can have at the cost ``most``, but at least one."""
    stacks: list[Sequence[int]] = []
    start, spent = 0, _STEP * steps[0] if steps else 0
    for i, count in enumerate(steps):
        spent += _CLIENT * count
        if i > start and (spent > most or i - start == largest):
            stacks.append(range(start, i))
            start, spent = i, (_STEP + _CLIENT) * count
    return [*stacks, range(start, len(steps))] if steps else []  # nobody may come, where each tosses a coin of its own
