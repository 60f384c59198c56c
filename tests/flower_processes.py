"""Real Flower processes on loopback, each started and ended by its own pid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

BIN = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, from the kernel."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def environment(home: Path) -> dict[str, str]:
    """No telemetry, no update check, no installation at run time, and nothing outside ``home``."""
    return {
        **{
            key: os.environ[key]
            for key in ("HOME", "LANG", "TMPDIR", "FEDHYPER_DATA", "PYTHONPATH")
            if key in os.environ
        },
        "PATH": f"{BIN}:/usr/bin:/bin",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 otherwise: on a busy machine clients would wait for everybody else
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
    }


def descendants(pid: int) -> Iterator[int]:
    """The processes below ``pid``, by the parents the kernel names."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
        yield from more


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_for(what: str, ready: Callable[[], Any], timeout: float = 1800.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := ready()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.1)
    return value


class Stillness:
    """True once nothing that is watched has changed for so many seconds: on a busy machine slow is not stuck."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._seen, self._since = seconds, object(), time.monotonic()  # type: float, object, float

    def watch(self, *signs: object) -> None:
        seen = repr(signs)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()

    def __bool__(self) -> bool:
        return time.monotonic() - self._since > self.seconds


class Federation:
    """A SuperLink, its SuperNodes and the CLI, in one directory."""

    def __init__(self, root: Path, *, simulation: bool = False) -> None:
        self.root, self.home = root, root / "home"
        self.home.mkdir(parents=True)
        self.env = environment(self.home)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, *self._node_ports = free_ports(6)
        config = (
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (self.home / "config.toml").write_text(config)
        self._options = ["--simulation"] if simulation else []
        self.superlink()

    def superlink(self) -> None:
        """Start it, or start it again with the same database."""
        self.start(
            "superlink",
            *("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.root / "state.db"), *self._options),
        )
        wait_for("the SuperLink", self._healthy)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """In a session of its own, so that it can be ended with everything it starts."""
        with (self.root / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.env,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def supernodes(self, count: int) -> None:
        for i in range(count):
            self.start(
                f"node{i}",
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"),
                *("--port", str(self._node_ports[i]), "--node-config", f"partition-id={i} num-partitions={count}"),
            )
        listed = ("supernode", "list", "test", "--format", "json")
        wait_for("the nodes", lambda: self.cli(*listed).count('"online"') == count)

    def cli(self, *arguments: str, timeout: float = 900) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            timeout=timeout,
            text=True,
        )
        return done.stdout + done.stderr

    def submit(self, app: Path, config: str, *options: str) -> str:
        """Start a run; its id comes back."""
        text = self.cli("run", str(app), "test", "-c", config, "--format", "json", *options)
        return str(json.loads(text[text.index("{") : text.rindex("}") + 1])["run-id"])

    def status(self, run: str) -> str:
        text = self.cli("list", "test", "--run-id", run, "--format", "json")
        return str(json.loads(text[text.index("{") : text.rindex("}") + 1])["runs"][0]["status"])

    def finish(self, run: str) -> str:
        """Wait for the end of a run: its status comes back. The SuperLink's log says it cheaper than the CLI does."""
        over, still = re.compile(rf"Finished (task \d+ of )?run `?{run}"), Stillness(600)
        while not (over.search(self.log()) and (status := self.status(run)).startswith("finished")):
            still.watch(*(path.stat().st_size for path in self.root.glob("*.log")))
            assert not still, f"run {run} stands still: {self.app_log(run)[-3000:]}"
            time.sleep(0.5)
        return status

    def log(self, name: str = "superlink") -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def app_log(self, run: str) -> str:
        return self.cli("log", run, "test", "--show")

    def below(self, name: str, program: str) -> list[int]:
        """Processes that our ``name`` has started and whose command names ``program``."""
        return [pid for pid in descendants(self.processes[name].pid) if program in command_line(pid)]

    def kill(self, name: str) -> None:
        """SIGKILL, with everything it started."""
        process = self.processes.pop(name)
        below = list(descendants(process.pid))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes)[::-1]:
            self.kill(name)
