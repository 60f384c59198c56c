"""Worker processes: the bits of one process, whatever happens to them, and nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedhyper.errors import UserError
from fedhyper.sim.engines import choice, memory
from fedhyper.sim.engines.base import ClientTask, Engine, Reply, Sent, Steps
from fedhyper.sim.engines.choice import Recipe, lock_share, make_engine
from fedhyper.sim.engines.processes import ProcessEngine
from fedhyper.sim.methods import Local
from fedhyper.sim.models import make_model
from fedhyper.sim.registry import LOCALS
from tests.sim_support import batchnorm_net, make_simulation

ROUNDS = 3
COHORT = {"clients": 80, "clients_per_round": 70}  # more than two stacks


def bits(**settings: Any) -> tuple[str, str]:
    """The weights after some rounds, and what trained them."""
    simulation = make_simulation("fedhyper-g+cl", **{**COHORT, **settings})
    for _ in range(ROUNDS):
        simulation.run_round()
    simulation.close()
    return simulation.weights_sha256(), simulation.trained_by


@pytest.mark.parametrize("model", ["mlp", "logistic", "cnn", "batchnorm"])
def test_one_sha256_for_any_number_of_threads_and_processes(model: str) -> None:
    def one(engine: str, workers: int) -> str:
        made = batchnorm_net() if model == "batchnorm" else model
        # softmax: all batches have the same length, so that stacks are cut to suit the workers
        few = {"clients": 12, "clients_per_round": 10, "batch_size": 5, "local_epochs": 3}
        found, trained_by = bits(model=made, engine=engine, workers=workers, **few if model == "logistic" else {})
        assert workers == 1 or f"{workers} {engine}" in trained_by
        return found

    ways = [("threads", 1), ("threads", 3), ("processes", 2)] + [("processes", 1), ("processes", 3)] * (model == "mlp")
    assert len({one(engine, workers) for engine, workers in ways}) == 1


class Work:
    """An engine with processes of its own, the one it must agree with, and the clients of a round."""

    def __init__(self, model: str = "cnn", *, workers: int = 2, **settings: Any) -> None:
        self.simulation = make_simulation(model=model, clients=14, clients_per_round=12, workers=1)
        sim, state = self.simulation, self.simulation.server_state.now
        built = make_model(model, sim.task.shape, sim.task.classes, seed=0)
        step = LOCALS.get("sgd").fast
        recipe = Recipe(model != "cnn", built, sim.task, Local(), "cpu", torch.float32, 1, step)
        self.engine = ProcessEngine(recipe(), recipe.for_worker(), workers, patience=0.0, **settings)
        self.tasks = sim.cohorts.tasks(0)
        self.sent = Sent(state.weights, state.statistics, torch.empty(0, dtype=torch.int64), 0.05, None)
        self.expected = list(sim.engine.train(self.tasks, self.sent))

    def close(self) -> None:
        self.engine.close()
        self.simulation.close()


@pytest.fixture
def make_work() -> Iterator[Callable[..., Work]]:
    made: list[Work] = []

    def make(*args: Any, **settings: Any) -> Work:
        made.append(Work(*args, **settings))
        return made[-1]

    yield make
    for work in made:
        work.close()


def assert_same(replies: list[Reply], expected: list[Reply]) -> None:
    assert [reply[:2] + reply[5:] for reply in replies] == [reply[:2] + reply[5:] for reply in expected]
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(replies, expected, strict=True))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_replies_are_those_of_the_own_engine_in_the_order_of_tasks(start: str, make_work: Callable[..., Work]) -> None:
    work = make_work(start=start)
    for _ in range(2):
        assert_same(list(work.engine.train(work.tasks, work.sent)), work.expected)
    assert len(work.engine.pids) == 2
    assert os.getpid() not in work.engine.pids
    # rows are used again only when nobody holds them: what came first is still there after another call
    first = list(work.engine.train(work.tasks, work.sent))
    list(work.engine.train(work.tasks, work.sent._replace(local_lr=0.5)))
    assert_same(first, work.expected)


class Deadly:
    """Local steps that kill the process that begins them, as often as ``lives`` says; ``note`` counts."""

    def __init__(self, steps: Steps, note: Path, lives: int) -> None:
        self.steps, self.note, self.lives, self.pid = steps, note, lives, os.getpid()

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        spent = len(self.note.read_text()) if self.note.exists() else 0
        if spent < self.lives and os.getpid() != self.pid:
            self.note.write_text("x" * (spent + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return iter(self.steps)


def deadly(task: ClientTask, note: Path, lives: int) -> ClientTask:
    return task._replace(batches=Deadly(task.batches, note, lives))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_killed_workers_clients_are_trained_again(start: str, make_work: Callable[..., Work], tmp_path: Path) -> None:
    work = make_work(start=start)
    list(work.engine.train(work.tasks, work.sent))
    before = work.engine.pids
    tasks = [deadly(task, tmp_path / f"{i}", 1) if i in (0, 5) else task for i, task in enumerate(work.tasks)]
    assert_same(list(work.engine.train(tasks, work.sent)), work.expected)
    assert not set(before) & set(work.engine.pids)  # both were killed; with spawn one may not be back yet
    assert_same(list(work.engine.train(work.tasks, work.sent)), work.expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_workers_and_the_process_they_are_forked_from_killed_at_once(make_work: Callable[..., Work]) -> None:
    work = make_work()
    replies = work.engine.train(work.tasks, work.sent)
    found = [next(replies)]
    for pid in [parent_of(work.engine.pids[0]), *work.engine.pids]:
        os.kill(pid, signal.SIGKILL)
    assert_same([*found, *replies], work.expected)


def test_workers_that_keep_dying_end_the_run_in_one_line(make_work: Callable[..., Work], tmp_path: Path) -> None:
    work = make_work()
    tasks = [deadly(task, tmp_path / "note", 9) if i == 4 else task for i, task in enumerate(work.tasks)]
    with pytest.raises(UserError, match=rf"3 worker processes .* client {tasks[4].client}; .* --workers 1") as caught:
        list(work.engine.train(tasks, work.sent))
    assert "\n" not in str(caught.value)


class Refused:
    """Local steps that cannot be drawn."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        raise UserError("this client has no data")


def test_an_error_in_a_worker_is_the_callers_and_the_next_call_is_served(make_work: Callable[..., Work]) -> None:
    work = make_work()
    with pytest.raises(UserError, match="this client has no data"):
        list(work.engine.train([*work.tasks[:3], work.tasks[3]._replace(batches=Refused())], work.sent))
    assert_same(list(work.engine.train(work.tasks, work.sent)), work.expected)


def test_a_call_that_is_left_and_two_at_once(make_work: Callable[..., Work]) -> None:
    work = make_work()
    left = work.engine.train(work.tasks, work.sent._replace(local_lr=9.0))
    next(left)
    left.close()
    both = zip(work.engine.train(work.tasks, work.sent), work.engine.train(work.tasks, work.sent), strict=True)
    for replies in zip(*both, strict=True):
        assert_same(list(replies), work.expected)


def test_replies_may_be_held_beyond_the_room_there_is(
    make_work: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "HELD", 0)
    work = make_work()
    calls = [list(work.engine.train(work.tasks, work.sent)) for _ in range(3)]
    for replies in calls:
        assert_same(replies, work.expected)


def test_a_short_run_starts_no_process() -> None:
    simulation = make_simulation(model="mlp", engine="fast", workers=2, **COHORT)
    simulation.run_round()
    assert isinstance(simulation.engine, ProcessEngine)
    assert simulation.engine.pids == []
    simulation.close()


def test_what_cannot_be_sent_is_trained_in_threads_and_a_line_says_so() -> None:
    class Mine(torch.nn.Sequential):
        pass

    def one(engine: str) -> tuple[str, str]:
        return bits(model=Mine(*batchnorm_net()), engine=engine, workers=2, clients=12, clients_per_round=6)

    (threads, _), (processes, trained_by) = one("threads"), one("processes")
    assert threads == processes
    assert "without worker processes, which could not be started" in trained_by
    assert "Mine" in trained_by
    assert "\n" not in trained_by


PLUGIN = """
import torch
from fedhyper.sim.local.step import LocalStep
from fedhyper.sim.registry import register_local

class Halved(LocalStep):
    def rate(self, grad, loss):
        return self.lr / 2, grad

register_local("halved", fast=Halved, slow=lambda parameters, start: torch.optim.SGD(parameters, lr=start.lr / 2))

class Net(torch.nn.Sequential):
    pass
"""


def test_plug_ins_are_imported_in_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halving_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    import halving_plugin  # type: ignore[import-not-found]

    def one(engine: str) -> tuple[str, str]:
        net, local = halving_plugin.Net(*batchnorm_net()), Local(kind="halved")
        simulation = make_simulation(model=net, local=local, engine=engine, workers=2, clients=12, clients_per_round=6)
        simulation.run_round()
        simulation.close()
        return simulation.weights_sha256(), simulation.trained_by

    (threads, _), (processes, trained_by) = one("threads"), one("processes")
    assert threads == processes
    assert "2 processes" in trained_by
    LOCALS.remove("halved")


def chosen(model: str, workers: int, batch_size: int = 32, kind: Any = "fast") -> tuple[Engine, str]:
    task = make_simulation().task
    return make_engine(
        kind,
        model=make_model(model, task.shape, task.classes, seed=0),
        task=task,
        local=Local(),
        batch_size=batch_size,
        workers=workers,
        device="cpu",
        dtype=torch.float32,
    )


def test_processes_are_chosen_where_threads_would_wait_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    # n · s > 1/8: with a share of 0.05 three workers wait for each other, two do not
    monkeypatch.setattr(choice, "lock_share", lambda *_: 0.05)
    for workers, expected in ((1, False), (2, False), (3, True), (64, True)):
        engine, why = chosen("cnn", workers)
        assert isinstance(engine, ProcessEngine) == expected, workers
        assert workers == 1 or f"{workers} {'processes' if expected else 'threads'}: " in why
        assert workers == 1 or "5.0%" in why
        engine.close()
    for workers in (1, 2):  # stacks wait for each other from two on
        engine, _ = chosen("mlp", workers)
        assert isinstance(engine, ProcessEngine) == (workers > 1)
        engine.close()


def test_larger_batches_and_layers_hold_the_lock_for_less_of_a_step() -> None:
    images = torch.zeros(10, 1, 28, 28)
    net = make_model("cnn", (1, 28, 28), 10, seed=0)
    assert 0 < lock_share(net, images, 640) < lock_share(net, images, 10) < 1
    wide = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4000), torch.nn.Linear(4000, 4000))
    thin = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4), torch.nn.Linear(4, 4))
    assert lock_share(wide, images, 32) < lock_share(thin, images, 32)


DRIVER = """
import faulthandler
import signal
faulthandler.register(signal.SIGUSR1)  # where it is, to standard error
from tests.test_processes import make_simulation
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
simulation = make_simulation(model="cnn", engine="processes", workers=3, clients=40, clients_per_round=30)
simulation.run_round()
print(*simulation.engine.pids, flush=True)
while True:
    simulation.run_round()
"""


def parent_of(pid: int) -> int:
    """Who forked it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def assert_nothing_is_left(kill: Callable[[subprocess.Popen[str]], None], *, group: bool = False) -> None:
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment,
            start_new_session=group,
        ) as driver,
    ):
        assert driver.stdout is not None
        try:
            pids = [int(pid) for pid in driver.stdout.readline().split()]
            assert len(pids) == 3
            pids.append(parent_of(pids[0]))
            kill(driver)
            try:
                driver.wait(30)
            except subprocess.TimeoutExpired:
                # Seen once, on CI, in some hundred runs: Python loses a KeyboardInterrupt where nothing can be raised
                # (in a destructor). A person presses again; if that does not help, we want to know where it is.
                driver.send_signal(signal.SIGUSR1)
                time.sleep(1)
                driver.send_signal(signal.SIGINT)
                driver.wait(60)
        except subprocess.TimeoutExpired:
            said.seek(0)
            pytest.fail(f"alive a minute after the second Ctrl-C:\n{said.read().decode()}")
        finally:
            driver.kill()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == []
    assert (set(shared.iterdir()) if shared.is_dir() else set()) - before == set()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_run_that_was_killed(number: signal.Signals) -> None:
    if number == signal.SIGINT:  # as a terminal does it: to the whole group
        assert_nothing_is_left(lambda driver: os.killpg(driver.pid, number), group=True)
    else:
        assert_nothing_is_left(lambda driver: driver.kill())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_of_fifty_runs_that_were_killed() -> None:
    rng = random.Random(0)
    for _ in range(50):
        wait, number = rng.uniform(0, 0.5), rng.choice([signal.SIGKILL, signal.SIGINT])

        def kill(driver: subprocess.Popen[str], wait: float = wait, number: signal.Signals = number) -> None:
            time.sleep(wait)
            os.kill(driver.pid, number)

        assert_nothing_is_left(kill)


def test_the_benchmarks_prediction_for_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    from cores import speed

    assert speed(1, 0.3) == pytest.approx(1)
    assert speed(64, 0.0) == 64
    assert speed(64, 1.0) == pytest.approx(1)
    # two that are half of the time at what only one can do: 2 / (0.5 + 0.5 · 1.5), one waits half of the time
    assert speed(2, 0.5) == pytest.approx(1.6)
    assert speed(64, 0.1) == pytest.approx(10, rel=1e-3)
