"""The numbers of every round for TensorBoard, in the run directory's ``tensorboard/`` (the ``[tensorboard]`` extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhyper.lab.running.progress import Listener, Record, Summary
    from fedhyper.lab.running.run import Run


class TensorBoard:
    """Passes everything on to ``inner`` and writes each round's numbers on the way."""

    def __init__(self, inner: Listener) -> None:
        import tensorboard  # noqa: F401  torch's own message about its absence does not say which extra

        self.inner = inner
        self._writer: Any = None

    def start(self, run: Run) -> None:
        """Rounds that will be computed again replace what an interrupted run had written of them."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.out / "tensorboard"), purge_step=run.round + 1)
        self.inner.start(run)

    def round(self, run: Run, record: Record) -> None:
        """Write every number of the record as a scalar of this round, then pass the record on."""
        for key, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "round":
                self._writer.add_scalar(key, value, record["round"])
        self.inner.round(run, record)

    def note(self, text: str) -> None:
        """Notes are for people: passed on, not written."""
        self.inner.note(text)

    def end(self, run: Run, summary: Summary) -> None:
        """Bring the last numbers to disk."""
        if self._writer is not None:
            self._writer.close()
        self.inner.end(run, summary)
