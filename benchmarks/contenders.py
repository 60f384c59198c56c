"""The contenders: each a process of its own that does a round when told to, so that rounds can be interleaved."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from workloads import PEERS

BUILD = Path(__file__).parent.parent / "build" / "peers"
PATIENCE = 900.0  # seconds until a contender that does not answer has failed


class Failed(Exception):
    """A contender cannot be started, died, or does not answer; the text is its last word."""


@dataclass(frozen=True)
class Contender:
    """``group``: contenders that are settings of one thing, of which the best counts. ``peer``: whose environment."""

    name: str
    group: str
    script: str
    arguments: tuple[str, ...] = ()
    peer: str = ""
    processes: int = 1

    @property
    def python(self) -> Path:
        """The interpreter of its environment; ours if it has none."""
        return BUILD / self.peer / "bin" / "python" if self.peer else Path(sys.executable)

    def command(self, directory: Path) -> list[str]:
        """What to start; ``directory`` holds the work."""
        script = [str(PEERS / self.script), str(directory), *self.arguments]
        if self.processes == 1:
            return [str(self.python), *script]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        return [str(self.python), *launch, *script]


FAST = Contender("fedhyper", "fedhyper", "ours.py", ("fast", "2", "fedavg"))
NAIVE_1 = Contender("naive, 1 thread", "naive", "naive.py", ("1",))
NAIVE_2 = Contender("naive, 2 threads", "naive", "naive.py", ("2",))
METHODS = ("fedavg", "fedhyper-g", "fedhyper-sl", "fedhyper-cl")
OWN = [
    FAST,
    Contender("hand-tuned, 2 threads", "tuned", "tuned.py", ("2",)),
    NAIVE_1,
    NAIVE_2,
    Contender("sequential twin", "sequential", "ours.py", ("sequential", "1", "fedavg")),
]
PEER_CONTENDERS = [
    Contender("pfl 0.6, 1 thread", "pfl", "pfl_peer.py", ("1",), "pfl"),
    Contender("pfl 0.6, 2 threads", "pfl", "pfl_peer.py", ("2",), "pfl"),
    Contender("pfl 0.6, torchrun 2", "pfl", "pfl_peer.py", ("1",), "pfl", processes=2),
    Contender("Flower 1.41, Ray, 2 actors", "flower", "flower_peer.py"),
    Contender("FedLab 1.3, 1 thread", "fedlab", "fedlab_peer.py", ("1",), "fedlab"),
    Contender("FedLab 1.3, 2 threads", "fedlab", "fedlab_peer.py", ("2",), "fedlab"),
    Contender("FedJAX 0.0.17", "fedjax", "fedjax_peer.py", (), "fedjax"),
]


class Running:
    """A started contender. ``seconds_ready``: from the command to its first line."""

    def __init__(self, contender: Contender, directory: Path) -> None:
        self.contender = contender
        if not contender.python.exists():
            raise Failed(f"not installed: run python benchmarks/peers/install.py {contender.peer}")
        self._log = directory / f"{contender.name.replace(' ', '_').replace(',', '')}.log"
        # a thread that waits must not spin on the core of another contender
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        self.started = time.perf_counter()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                contender.command(directory),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                bufsize=0,
            )
        self._answer()
        self.seconds_ready = time.perf_counter() - self.started

    def _answer(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        text = self.process.stdout.readline().decode().strip() if ready else ""
        if not text:
            self.stop()
            last = [line for line in self._log.read_text().splitlines() if line.strip()][-1:]
            raise Failed(last[0][:200] if ready and last else "died without a word" if ready else "no answer in time")
        return text

    def ask(self, command: str) -> str:
        """One line there, one line back."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last word is in the log: _answer finds it
            self.process.stdin.write(f"{command}\n".encode())
        return self._answer()

    def round(self, t: int) -> float:
        """Seconds that round ``t`` took."""
        return float(self.ask(f"round {t}"))

    def stop(self) -> None:
        """End it; it has a while to put its own processes away."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.terminate()
                self.process.wait(20)
