"""Who is there, in an order that does not change: Flower's node ids are random numbers, partition ids are not."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedhyper.flower.records.replies import NodeReply
from fedhyper.flower.wire import ANSWER, NUM_PARTITIONS, PARTITION, PARTITION_ID, QUESTION

Configure = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]

_log = logging.getLogger("flwr")


class OrderedGrid(Grid):
    """A grid that lists its nodes in a given order; everything else is the grid's own."""

    def __init__(self, grid: Grid, order: list[int]) -> None:
        self._grid, self._order = grid, order

    def get_node_ids(self) -> Iterable[int]:
        """The given order, less those that have left since."""
        online = set(self._grid.get_node_ids())
        return [node for node in self._order if node in online]

    def set_run(self, run: Any) -> None:
        """The grid's own."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The grid's own."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """The grid's own."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """The grid's own."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The grid's own."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The grid's own."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class Roster:
    """The partition of every node, asked once a node; ``nodes`` is how many to wait for (None: what they answer)."""

    def __init__(self, nodes: int | None, wait: float) -> None:
        self.nodes, self.wait = nodes, wait
        self.partitions: dict[int, int | None] = {}
        self._sizes: Counter[int] = Counter()
        self._assembled = False

    def assemble(self, grid: Grid, *, ask: bool) -> list[int]:
        """List the nodes by partition; the first time, wait for the expected number, at most ``wait`` seconds.

        Only the first time: nodes register one by one when a run starts, and one that dies later must not hold it up.
        """
        deadline = time.monotonic() + self.wait
        while True:
            online = list(grid.get_node_ids())
            if ask and (new := [node for node in online if node not in self.partitions]):
                self._ask(grid, new, max(deadline - time.monotonic(), 1.0))
            expected = self.nodes or (self._sizes.most_common(1)[0][0] if self._sizes else 1)
            if self._assembled or len(online) >= expected:
                break
            if time.monotonic() >= deadline:
                _log.warning("fedhyper: %d of %d nodes came within %g s; going on", len(online), expected, self.wait)
                break
            time.sleep(0.2)
        self._assembled = True
        return sorted(online, key=self.position)

    def position(self, node: int) -> tuple[bool, int, int]:
        """Where a node stands: by partition, those without one last, by node id."""
        partition = self.partitions.get(node)
        return partition is None, partition or 0, node

    def sample(
        self,
        configure: Configure,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        seed: int | None,
    ) -> list[Message]:
        """The messages of an inner strategy's ``configure_*``; with a seed its nodes are drawn from that, by partition.

        Flower draws them with Python's global generator: it is given a seed for as long as that takes, and put back.
        """
        order = self.assemble(grid, ask=seed is not None)
        if seed is None:
            return list(configure(server_round, arrays, config, grid))
        before = random.getstate()
        random.seed(f"{seed}/{configure.__name__.removeprefix('configure_')}/{server_round}")
        try:
            return list(configure(server_round, arrays, config, OrderedGrid(grid, order)))
        finally:
            random.setstate(before)

    def who(self, node: int) -> str:
        """A node, for a log."""
        partition = self.partitions.get(node)
        return f"node {node}" if partition is None else f"node {node} (partition {partition})"

    def in_order(self, replies: list[NodeReply]) -> list[NodeReply]:
        """The replies in an order that does not depend on who was faster. A reply may say which partition it is of."""
        for reply in replies:
            partition = reply.metrics.get(PARTITION)
            if type(partition) is int and self.partitions.get(reply.node) is None:
                self.partitions[reply.node] = partition
        return sorted(replies, key=lambda reply: self.position(reply.node))

    def _ask(self, grid: Grid, nodes: list[int], timeout: float) -> None:
        questions = [Message(RecordDict(), node, QUESTION) for node in nodes]
        for reply in grid.send_and_receive(questions, timeout=timeout):
            node = reply.metadata.src_node_id
            if node in nodes and reply.has_content() and ANSWER in reply.content.config_records:
                answer = reply.content.config_records[ANSWER]
                partition, size = answer.get(PARTITION_ID), answer.get(NUM_PARTITIONS)
                if type(partition) is int and partition >= 0:
                    self.partitions[node] = partition
                if type(size) is int and size > 0:
                    self._sizes[size] += 1
        if silent := [node for node in nodes if node not in self.partitions]:
            self.partitions.update(dict.fromkeys(silent))
            _log.warning(
                "fedhyper: %d nodes do not say which partition they hold and are ordered by node id, which is random; "
                "call fedhyper.flower.identify(app) in the ClientApp for the same bits every time",
                len(silent),
            )
