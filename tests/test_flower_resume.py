"""A ServerApp killed and started again ends at the same bits as one that never stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi, Strategy

from fedhyper import Auto
from fedhyper.errors import CheckpointRefused, StorageError, TrainingStopped, UserError
from fedhyper.flower import FedHyper
from fedhyper.storage import checkpoint
from tests.flower_support import LocalGrid, NoStart, arrays, config, initial, quadratic_app, same_bits

INNER: dict[str, Callable[..., Strategy]] = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda **kw: FedAvgM(server_momentum=0.9, **kw),
    "FedAdam": lambda **kw: FedAdam(beta_1=0.9, beta_2=0.99, **kw),
    "FedYogi": FedYogi,
    "FedAdagrad": FedAdagrad,
    "FedMedian": FedMedian,
}


class Killed(Exception):
    pass


class DyingGrid(LocalGrid):
    """Dies in round ``dies_at``, before or after the clients have worked."""

    def __init__(self, *args: Any, dies_at: int, after: bool, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.left, self.after = dies_at, after

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self.left -= any(message.metadata.message_type == "train" for message in messages)
        if self.left <= 0 and not self.after:
            raise Killed
        replies = super().send_and_receive(messages, timeout=timeout)
        if self.left <= 0:
            raise Killed
        return replies


def make(name: str, schedule: Any, path: Path | None) -> FedHyper:
    return FedHyper(
        INNER[name](fraction_train=0.5, min_train_nodes=3, fraction_evaluate=0.0), schedule, seed=11, checkpoint=path
    )


def untimed(record: Any) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


def start(strategy: FedHyper, grid: LocalGrid, begin: Any = initial, **kw: Any) -> Any:
    return strategy.start(grid, begin(), num_rounds=5, train_config=config(lr=0.02), **kw)


@pytest.mark.parametrize("schedule", ["auto", "g", "g+sl", "g+cl"])
@pytest.mark.parametrize("name", INNER)
def test_killed_anywhere_and_resumed_equals_never_stopped(tmp_path: Path, name: str, schedule: str) -> None:
    whole = make(name, schedule, None)
    reference = start(whole, LocalGrid(quadratic_app(), 6))
    for dies_at in range(1, 6):
        for after in (False, True):
            path = tmp_path / f"{dies_at}{after}.ckpt"
            with pytest.raises(Killed):
                start(make(name, schedule, path), DyingGrid(quadratic_app(), 6, dies_at=dies_at, after=after))
            again = make(name, schedule, path)
            grid = LocalGrid(quadratic_app(), 6, shuffle=dies_at)  # new node ids, as after a restart
            result = start(again, grid, resume=True)
            assert same_bits(result.arrays, reference.arrays)
            assert [untimed(row) for row in again.history] == [untimed(row) for row in whole.history]
            assert again.state.local_lr == whole.state.local_lr
            trained = {
                int(m.content["config"]["server-round"]) for m in grid.sent if m.metadata.message_type == "train"
            }
            assert trained == set(range(dies_at, 6))


def without_axes() -> ArrayRecord:
    """A scale as CLIP's ``logit_scale``, and a statistic of the same kind: of such arrays NumPy makes numbers."""
    return arrays(w=np.zeros(4, np.float32), scale=np.asarray(0.5, np.float32), running_var=np.asarray(0.7, np.float32))


@pytest.mark.parametrize("schedule", ["auto", "g+sl"])
@pytest.mark.parametrize("name", INNER)
def test_arrays_without_axes_are_resumed_too(tmp_path: Path, name: str, schedule: str) -> None:
    reference = start(make(name, schedule, None), LocalGrid(quadratic_app(), 6), without_axes)
    for dies_at in (2, 3, 5):
        path = tmp_path / f"{dies_at}.ckpt"
        grid = DyingGrid(quadratic_app(), 6, dies_at=dies_at, after=True)
        with pytest.raises(Killed):
            start(make(name, schedule, path), grid, without_axes)
        result = start(make(name, schedule, path), LocalGrid(quadratic_app(), 6), without_axes, resume=True)
        assert same_bits(result.arrays, reference.arrays)


def test_the_mean_that_is_returned_survives_a_resume(tmp_path: Path) -> None:
    plan = Auto(local_lr=0.02, recency=1.0)
    whole = FedHyper(FedAvg(), plan, seed=1)
    reference = whole.start(LocalGrid(quadratic_app(), 6), initial(), num_rounds=10)
    assert whole.state.averaged > 3
    for dies_at in (7, 10):
        strategies = [FedHyper(FedAvg(), plan, seed=1, checkpoint=tmp_path / str(dies_at)) for _ in range(2)]
        with pytest.raises(Killed):
            strategies[0].start(DyingGrid(quadratic_app(), 6, dies_at=dies_at, after=True), initial(), num_rounds=10)
        result = strategies[1].start(LocalGrid(quadratic_app(), 6), initial(), num_rounds=10, resume=True)
        assert same_bits(result.arrays, reference.arrays)


def test_results_and_central_evaluation_keep_the_true_round_numbers(tmp_path: Path) -> None:
    path, seen = tmp_path / "c", []

    def evaluate(server_round: int, record: Any) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"round": server_round})

    with pytest.raises(Killed):
        start(make("FedAvg", "auto", path), DyingGrid(quadratic_app(), 6, dies_at=3, after=True))
    result = start(make("FedAvg", "auto", path), LocalGrid(quadratic_app(), 6), resume=True, evaluate_fn=evaluate)
    assert sorted(result.train_metrics_clientapp) == [3, 4, 5]
    assert seen == [2, 3, 4, 5]
    assert {k: v["round"] for k, v in result.evaluate_metrics_serverapp.items()} == {k: k for k in seen}


def test_resuming_a_finished_run_gives_its_result(tmp_path: Path) -> None:
    path = tmp_path / "c"
    first = start(make("FedAdam", "g", path), LocalGrid(quadratic_app(), 6))
    grid = LocalGrid(quadratic_app(), 6)
    strategy = make("FedAdam", "g", path)
    again = start(strategy, grid, resume=True)
    assert same_bits(first.arrays, again.arrays)
    assert grid.sent == []


def test_resume_without_a_checkpoint_starts_and_without_resume_it_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "c"
    start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6), resume=True)
    before = path.read_bytes()
    with pytest.raises(UserError, match="exists"):
        start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6))
    assert path.read_bytes() == before


def test_rollback_state_survives_a_resume(tmp_path: Path) -> None:
    """Killed between the bad round and the next: the last good weights must come from the file."""

    def bad_in_round_4(reply: Message) -> Message:
        if reply.content["metrics"]["fedhyper.round"] == 4:
            reply.content["metrics"]["fedhyper.loss"] = 1e6
        return reply

    spoil = dict.fromkeys(range(6), bad_in_round_4)
    plan = NoStart(voices=3, local_lr=0.02)  # the start of three nodes has damage of its own
    whole = make("FedAvgM", plan, None)
    reference = start(whole, LocalGrid(quadratic_app(), 6, spoil=spoil))
    assert [record["rollback"] for record in whole.history] == [False, False, False, True, False]
    for dies_at in (4, 5):
        path = tmp_path / str(dies_at)
        grid = DyingGrid(quadratic_app(), 6, spoil=spoil, dies_at=dies_at, after=True)
        with pytest.raises(Killed):
            start(make("FedAvgM", plan, path), grid)
        again = start(make("FedAvgM", plan, path), LocalGrid(quadratic_app(), 6, spoil=spoil), resume=True)
        assert same_bits(again.arrays, reference.arrays)


def test_patience_counts_across_a_resume(tmp_path: Path) -> None:
    spoil = dict.fromkeys(range(6), lambda reply: [])
    path = tmp_path / "c"
    with pytest.raises(Killed):
        start(make("FedAvg", "g", path), DyingGrid(quadratic_app(), 6, spoil=spoil, dies_at=3, after=True))
    with pytest.raises(TrainingStopped, match="5 rounds"):
        start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6, spoil=spoil), resume=True)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("schedule", lambda path: make("FedAvg", "g+sl", path)),
        ("strategy", lambda path: make("FedAdam", "g", path)),
        ("seed", lambda path: FedHyper(FedAvg(), "g", seed=12, checkpoint=path)),
        ("norm_cap", lambda path: FedHyper(FedAvg(), "g", seed=11, checkpoint=path, norm_cap=0.0)),
        ("trained", lambda path: FedHyper(FedAvg(), "g", seed=11, checkpoint=path, trainable=["fc.weight"])),
    ],
)
def test_another_run_is_refused_by_the_setting_that_differs(tmp_path: Path, key: str, other: Any) -> None:
    path = tmp_path / "c"
    start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6))
    with pytest.raises(CheckpointRefused, match=f": {key} was ") as caught:
        start(other(path), LocalGrid(quadratic_app(), 6), resume=True)
    assert "\n" not in str(caught.value)


def test_another_initial_rate_is_another_schedule(tmp_path: Path) -> None:
    path = tmp_path / "c"
    start(make("FedAvg", "sl", path), LocalGrid(quadratic_app(), 6))
    with pytest.raises(CheckpointRefused, match="schedule was"):
        make("FedAvg", "sl", path).start(
            LocalGrid(quadratic_app(), 6), initial(), num_rounds=5, train_config=config(lr=0.5), resume=True
        )


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6))
    tensors, values = checkpoint.load(path)
    loop = values["loop"]  # round, now, good, mean, averaged, plan, moments, before, idle
    spoilt: dict[str, Any] = {
        "kind": {**values, "kind": "sim"},
        "rate": {**values, "loop": [*loop[:5], [float("nan"), *loop[5][1:]], *loop[6:]]},
        "loop": {**values, "loop": loop[:2]},
        "plan": {**values, "loop": [*loop[:5], loop[5][:2], *loop[6:]]},
        "memory": {k: v for k, v in values.items() if k != "memory"},
        "tensor": {**values, "loop": [*loop[:7], {"tensor": "nowhere"}, loop[8]]},
        "counters": {**values, "counters": {"items": {}}},
        "identity": {k: v for k, v in values.items() if k != "identity"},
        # whole, of the right form, and no state that this run can have had
        "count": {**values, "loop": [-1, *loop[1:]]},
        "verdict": {**values, "loop": [*loop[:5], [*loop[5][:2], "splendid", *loop[5][3:]], *loop[6:]]},
        "huge rate": {**values, "loop": [*loop[:5], [1e300, *loop[5][1:]], *loop[6:]]},
    }
    for bad in spoilt.values():
        checkpoint.save(path, tensors, bad)
        with pytest.raises(CheckpointRefused):
            start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6), resume=True)
    for name in tensors:
        if name.startswith("loop"):
            for forged in (tensors[name] * np.nan, tensors[name].reshape(-1)[:1]):
                checkpoint.save(path, {**tensors, name: forged}, values)
                with pytest.raises(CheckpointRefused):
                    start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6), resume=True)
    path.write_bytes(b"hello")
    with pytest.raises(CheckpointRefused):
        start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6), resume=True)


def test_a_full_disk_ends_the_run_in_one_line_and_keeps_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    path, real, left = tmp_path / "c", os.fsync, [4]

    def full(fd: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6))
    monkeypatch.setattr(os, "fsync", real)
    assert checkpoint.load(path)[1]["round"] == 2
    result = start(make("FedAvg", "g", path), LocalGrid(quadratic_app(), 6), resume=True)
    assert same_bits(result.arrays, start(make("FedAvg", "g", None), LocalGrid(quadratic_app(), 6)).arrays)


def test_saving_does_not_change_the_result(tmp_path: Path) -> None:
    a = start(make("FedYogi", "g+sl", None), LocalGrid(quadratic_app(), 6)).arrays
    b = start(make("FedYogi", "g+sl", tmp_path / "c"), LocalGrid(quadratic_app(), 6)).arrays
    assert same_bits(a, b)
    assert all(np.isfinite(array.numpy()).all() for array in a.values())
