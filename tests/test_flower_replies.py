"""Replies that must not be believed: each is refused by name, and the honest clients' result keeps every bit."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum

from fedhyper.errors import TrainingStopped
from fedhyper.flower import FedHyper
from fedhyper.flower.records.layout import finite, pack, view
from tests.flower_support import LocalGrid, initial, quadratic_app, same_bits

NAME = "fc.weight"  # (2, 4), float32


def put(value: Any, name: str = NAME) -> Callable[[Message], Message]:
    def spoil(reply: Message) -> Message:
        reply.content["arrays"][name] = value if isinstance(value, Array) else Array(np.asarray(value))
        return reply

    return spoil


def metric(key: str, value: Any) -> Callable[[Message], Message]:
    def spoil(reply: Message) -> Message:
        if value is None:
            del reply.content["metrics"][key]
        else:
            reply.content["metrics"][key] = value
        return reply

    return spoil


def edit(change: Callable[[RecordDict], Any]) -> Callable[[Message], Message]:
    def spoil(reply: Message) -> Message:
        change(reply.content)
        return reply

    return spoil


def one_bad(value: float) -> np.ndarray[Any, Any]:
    array = np.zeros((2, 4), np.float32)
    array[1, 3] = value
    return array


def raw(dtype: str, shape: tuple[int, ...], data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype, shape, stype, data)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


class Marker:
    executed = False

    def __reduce__(self) -> Any:
        return setattr, (Marker, "executed", True)


def object_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray([Marker()], dtype=object), allow_pickle=True)
    return file.getvalue()


def rename(content: RecordDict) -> None:
    record = content["arrays"]
    content["arrays"] = ArrayRecord({("fc.w" if k == NAME else k): v for k, v in record.items()})


def spoof(node: int) -> Callable[[Message], Message]:
    def spoil(reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    return spoil


HOSTILE: dict[str, Callable[[Message], Any]] = {
    "NaN": put(one_bad(math.nan)),
    "Inf": put(one_bad(math.inf)),
    "-Inf": put(one_bad(-math.inf)),
    "NaN in a buffer": put(np.full(4, np.nan, np.float32), "bn.running_mean"),
    "broadcastable shape": put(np.zeros(4, np.float32)),
    "scalar": put(np.float32(0).reshape(())),
    "wrong shape": put(np.zeros((2, 5), np.float32)),
    "transposed": put(np.zeros((4, 2), np.float32)),
    "zero-size": put(np.zeros((0, 4), np.float32)),
    "int64": put(np.zeros((2, 4), np.int64)),
    "bool": put(np.zeros((2, 4), bool)),
    "complex": put(np.zeros((2, 4), np.complex64)),
    "string": put(np.full((2, 4), "x")),
    "too large for the model's type": put(np.full((2, 4), 1e300)),
    "broken counter": put(np.asarray(3.5), "bn.num_batches_tracked"),
    "NaN counter": put(np.asarray(math.nan), "bn.num_batches_tracked"),
    "datetime": put(np.zeros((2, 4), "M8[s]")),
    "object array": put(raw("object", (1,), object_npy())),
    "pickle": put(raw("float32", (2, 4), pickle.dumps(Marker()))),
    "cut bytes": put(raw("float32", (2, 4), npy("{'descr':'<f4','fortran_order':False,'shape':(2,4),}", bytes(31)))),
    "long bytes": put(raw("float32", (2, 4), npy("{'descr':'<f4','fortran_order':False,'shape':(2,4),}", bytes(99)))),
    "huge shape": put(raw("float32", (2, 4), npy("{'descr':'<f4','fortran_order':False,'shape':(9999999,9999999),}"))),
    "negative shape": put(
        raw("float32", (2, 4), npy("{'descr':'<f4','fortran_order':False,'shape':(-2,-4),}", bytes(32)))
    ),
    "void type": put(raw("float32", (2, 4), npy("{'descr':'|V0','fortran_order':False,'shape':(2,4),}"))),
    "bad header": put(raw("float32", (2, 4), npy("{'descr':__import__('os'),}"))),
    "version 9": put(raw("float32", (2, 4), b"\x93NUMPY\x09\x00" + bytes(200))),
    "no bytes": put(raw("float32", (2, 4), b"")),
    "unknown serialization": put(raw("float32", (2, 4), bytes(32), "torch.pickle")),
    "missing key": edit(lambda content: content["arrays"].pop(NAME)),
    "extra key": put(np.zeros(3, np.float32), "backdoor"),
    "renamed key": edit(rename),
    "empty record": edit(lambda content: content["arrays"].clear()),
    "two array records": edit(lambda content: content.__setitem__("more", ArrayRecord())),
    "no array record": edit(lambda content: content.pop("arrays")),
    "two metric records": edit(lambda content: content.__setitem__("more", MetricRecord({"a": 1}))),
    "no metric record": edit(lambda content: content.pop("metrics")),
    "no content": edit(lambda content: content.clear()),
    "weight 0": metric("num-examples", 0),
    "weight -1": metric("num-examples", -1),
    "weight NaN": metric("num-examples", math.nan),
    "weight Inf": metric("num-examples", math.inf),
    "weight 2**62": metric("num-examples", 2**62),
    "weight beyond float": metric("num-examples", 10**400),
    "weight list": metric("num-examples", [1, 2]),
    "weight missing": metric("num-examples", None),
    "NaN in a list": metric("curve", [1.0, math.nan]),
    "other metrics": metric("extra", 1.0),
    "metric missing": metric("train_loss", None),
    "metric a list": metric("train_loss", [1.0]),
    "other round": metric("fedhyper.round", 99),
    "other round, stock echo": metric("server-round", 99),
    "unknown node": spoof(77),
    "control characters": put(np.zeros(1, np.float32), "\x1b[31m\nroot: ok"),
    "error": lambda reply: Message(Error(2, "boom\n\x1b[2J"), reply_to=reply),
}


ROUNDS = 6  # up to four in which clients try rates out, and two after them


def run(schedule: Any = "auto", spoil: dict[int, Any] | None = None, inner: Any = FedAvg, **settings: Any) -> Any:
    strategy = FedHyper(inner(), schedule, seed=0, **settings)
    grid = LocalGrid(quadratic_app(), 6, spoil=spoil)
    return strategy.start(grid, initial(), num_rounds=ROUNDS).arrays, strategy


def gone(reply: Message) -> list[Message]:
    return []


@pytest.fixture(scope="module")
def honest() -> dict[int, tuple[ArrayRecord, FedHyper]]:
    return {position: run(spoil={position: gone}) for position in (0, 3, 5)}


@pytest.mark.parametrize("position", [0, 3, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_honest_result_unchanged_bit_for_bit(name: str, position: int, honest: dict[int, Any]) -> None:
    """Under auto: a refused reply has no vote for the rate, either."""
    strategy, grid = FedHyper(FedAvg(), seed=0), LocalGrid(quadratic_app(), 6, spoil={position: HOSTILE[name]})
    result = strategy.start(grid, initial(), num_rounds=ROUNDS).arrays
    expected, without = honest[position]
    assert same_bits(result, expected)
    used, rates = (
        [[row[key] for row in one.history] for one in (strategy, without)] for key in ("clients_used", "local_lr")
    )
    assert used[0] == used[1]
    assert rates[0] == rates[1]
    assert used[0][4:] == [5, 5]
    if name != "error":
        assert [record["clients_rejected"] for record in strategy.history] == [1] * ROUNDS
        [(node, reason)] = strategy.rejected
        assert reason.isprintable()
        assert 0 < len(reason) <= 200
        assert node in {*grid.contexts, 77}
    assert not Marker.executed


HIDDEN = {  # by a mask, or no harm to a mean
    *("NaN", "Inf", "-Inf", "NaN in a buffer", "int64", "bool", "too large for the model's type", "NaN in a list"),
    *("broken counter", "NaN counter"),
}
MASKED = {
    **{name: spoil for name, spoil in HOSTILE.items() if name not in HIDDEN},
    "a metric of ours": metric("fedhyper.train-loss", 1.0),
    "a record of ours": edit(lambda content: content.__setitem__("fedhyper.x", ArrayRecord())),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_replies_are_checked_by_what_a_mask_does_not_hide(name: str) -> None:
    expected, _ = run("g", {3: gone}, aggregate_only=True)
    result, strategy = run("g", {3: MASKED[name]}, aggregate_only=True)
    assert same_bits(result, expected)
    assert name == "error" or [record["clients_rejected"] for record in strategy.history] == [1] * ROUNDS


@pytest.mark.parametrize("position", [0, 3, 5])
def test_a_second_reply_never_counts(position: int) -> None:
    def twice(reply: Message) -> list[Message]:
        import copy

        return [reply, copy.deepcopy(reply)]

    result, strategy = run(spoil={position: twice})
    assert same_bits(result, run()[0])
    assert strategy.history[-1]["clients_rejected"] == 1
    assert "second" in strategy.rejected[0].reason


def recast(dtype: Any, name: str = NAME) -> Callable[[Message], Message]:
    return edit(lambda c: c["arrays"].__setitem__(name, Array(c["arrays"][name].numpy().astype(dtype))))


HARMLESS: dict[str, Callable[[Message], Message]] = {
    "permuted keys": edit(lambda c: c.__setitem__("arrays", ArrayRecord(dict(reversed(list(c["arrays"].items())))))),
    "Fortran order": edit(lambda c: c["arrays"].__setitem__(NAME, Array(np.asfortranarray(c["arrays"][NAME].numpy())))),
    "our own extras": edit(lambda c: c.update({"fedhyper.x": MetricRecord({"a": 1}), "fedhyper.y": ArrayRecord()})),
    "a config record": edit(lambda c: c.__setitem__("note", ConfigRecord({"a": "b"}))),
    "lying metadata": edit(
        lambda c: c["arrays"].__setitem__(NAME, Array("int8", (9,), "numpy.ndarray", c["arrays"][NAME].data))
    ),
    "claims another partition": metric("fedhyper.partition", 0),
    "float64": recast(np.float64),
    "big-endian": recast(">f4"),
    "float counter": recast(np.float64, "bn.num_batches_tracked"),
}


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM, Krum])
@pytest.mark.parametrize("name", HARMLESS)
def test_odd_but_right_replies_count_in_full(name: str, inner: Any) -> None:
    assert same_bits(run(spoil={2: HARMLESS[name]}, inner=inner)[0], run(inner=inner)[0])


def everyone(spoil: Any, schedule: str = "g", inner: Any = FedAvg, **settings: Any) -> tuple[Any, FedHyper]:
    return run(schedule, spoil=dict.fromkeys(range(6), spoil), inner=inner, **settings)


def test_half_precision_replies_to_a_single_precision_server() -> None:
    result, strategy = everyone(recast(np.float16))
    assert [record["clients_used"] for record in strategy.history] == [6] * ROUNDS
    assert result[NAME].numpy().dtype == np.float32
    np.testing.assert_allclose(result[NAME].numpy(), run("g")[0][NAME].numpy(), atol=0.01)


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, math.nan]])
@pytest.mark.parametrize("schedule", ["auto", "g"])
def test_a_side_metric_that_is_not_finite_changes_nothing(schedule: str, value: Any) -> None:
    """An AUC of NaN, a privacy budget of infinity: Flower averages them, and so be it."""
    result, strategy = everyone(metric("auc", value), schedule)
    assert same_bits(result, run(schedule)[0])
    assert [record["clients_rejected"] for record in strategy.history] == [0] * ROUNDS


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_loss_that_is_not_finite_costs_its_client_no_more_than_its_vote(value: float) -> None:
    _, strategy = run(spoil={3: metric("train_loss", value)})
    honest = run()[1]
    assert [record["clients_rejected"] for record in strategy.history] == [0] * ROUNDS
    assert strategy.history[-1]["clients_used"] == 6
    # six clients try rates a factor of 30 apart, and six rounds leave no time for a closer look: what one of them does
    # not say leaves the next rate that was tried
    assert 1 / 50 < strategy.state.local_lr / honest.state.local_lr < 50
    assert all(np.isfinite(array).all() for array in strategy.state.now.weights.values())


class Own(FedAvg):
    """An app's strategy: it needs no weights, and clients send it a second record of arrays and one of metrics."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        contents = [message.content for message in replies if message.has_content()]
        self.seen = [sorted(content) for content in contents]
        means = {
            name: Array(np.asarray(np.mean([c["arrays"][name].numpy() for c in contents], 0, np.float32)))
            for name in contents[0]["arrays"]
        }
        return ArrayRecord(means), MetricRecord({"spread": 1.0})


def test_an_apps_own_strategy_is_given_all_that_its_clients_send() -> None:
    def more(content: RecordDict) -> None:
        del content["metrics"]["num-examples"]
        content["control"] = ArrayRecord({"c": Array(np.ones(3, np.float32))})
        content["timing"] = MetricRecord({"seconds": 1.0})

    inner = Own()
    strategy = FedHyper(inner, "g", seed=0)
    grid = LocalGrid(quadratic_app(), 4, spoil=dict.fromkeys(range(4), edit(more)))
    strategy.start(grid, initial(), num_rounds=2)
    assert inner.seen == [["arrays", "control", "metrics", "timing"]] * 4
    assert [record["clients_used"] for record in strategy.history] == [4, 4]


@pytest.mark.parametrize(
    "bad",
    [
        metric("accuracy", None),
        metric("num-examples", math.nan),
        metric("num-examples", [1]),
        edit(lambda c: c.clear()),
        edit(lambda c: c.__setitem__("more", MetricRecord({"a": 1}))),
    ],
)
def test_one_bad_evaluation_is_left_out_and_named(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Flower ends the run on each of these, or averages NaN."""

    class Spoilt(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            first = min((r for r in replies if r.metadata.message_type == "evaluate"), key=self.where, default=None)
            return replies if first is None else [bad(r) if r is first else r for r in replies]

        def where(self, reply: Message) -> int:
            return self.partition(reply.metadata.src_node_id)

    strategy = FedHyper(FedAvg(), "g", seed=0)
    with caplog.at_level("WARNING", "flwr"):
        result = strategy.start(Spoilt(quadratic_app(), 4), initial(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert sum("evaluation of node" in record.message for record in caplog.records) == 1


def test_why_nodes_failed_is_in_the_log_by_node(caplog: pytest.LogCaptureFixture) -> None:
    def fails(reply: Message) -> Message:
        return Message(Error(2, f"no disk on {reply.metadata.src_node_id}"), reply_to=reply)

    strategy = FedHyper(FedAvg(), "auto", seed=0)
    grid = LocalGrid(quadratic_app(), 3, spoil={0: fails, 1: fails, 2: gone})
    with caplog.at_level("WARNING", "flwr"):
        strategy.start(grid, initial(), num_rounds=1)
    lines = "\n".join(record.message for record in caplog.records)
    for node in grid.contexts:
        silent = grid.partition(node) == 2
        assert ("did not answer" if silent else f"failed: no disk on {node}") in lines
        assert f"node {node}" in lines


class Watching(FedAvg):
    """An inner strategy that ends the run when it sees anything odd."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        for message in replies:
            if message.has_error():
                continue
            assert list(message.content) == ["arrays", "metrics"]
            assert sorted(message.content["metrics"]) == ["num-examples", "train_loss"]
            for array in message.content["arrays"].values():
                assert np.isfinite(array.numpy()).all()
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_inner_strategy_never_sees_a_refused_reply(name: str) -> None:
    run(spoil={1: HOSTILE[name]}, inner=Watching)


@pytest.mark.parametrize("inner", [FedAvgM, FedAdam, FedMedian, FedTrimmedAvg, Krum])
@pytest.mark.parametrize("name", ["NaN", "broadcastable shape", "weight -1", "missing key", "other metrics", "complex"])
def test_every_inner_strategy_is_protected(name: str, inner: Any) -> None:
    assert same_bits(run(spoil={3: HOSTILE[name]}, inner=inner)[0], run(spoil={3: gone}, inner=inner)[0])


@pytest.mark.parametrize("schedule", ["auto", "g", "sl", "g+sl", "cl"])
@pytest.mark.parametrize("bad", [1, 3, 5])
def test_any_number_of_bad_clients_short_of_all(schedule: str, bad: int) -> None:
    spoil = dict.fromkeys(range(bad), HOSTILE["NaN"])
    result, strategy = run(schedule, spoil=spoil)
    assert same_bits(result, run(schedule, spoil=dict.fromkeys(range(bad), gone))[0])
    assert strategy.history[-1]["clients_rejected"] == bad


@pytest.mark.parametrize("position", [0, 5])
def test_a_bad_number_cannot_outvote_the_others_before_it_is_found(position: int) -> None:
    """FedAvg's replies are only looked into when their mean is not finite; nobody may profit from that."""

    def odd_and_nan(reply: Message) -> Message:
        del reply.content["metrics"]["train_loss"]
        return HOSTILE["NaN"](reply)

    others = {p: odd_and_nan for p in range(6) if p != position}  # five of six
    result, strategy = run(spoil=others)
    assert same_bits(result, run(spoil={p: gone for p in range(6) if p != position})[0])
    used = [record["clients_used"] for record in strategy.history]
    assert used[1:] == [1] * (ROUNDS - 1)  # one client alone cannot tell rates apart in the first
    assert all("non-finite" in reason for _, reason in strategy.rejected)


def test_all_bad_stops_the_run_with_the_reasons() -> None:
    strategy = FedHyper(FedAvg(), seed=0)
    spoil = dict.fromkeys(range(6), HOSTILE["wrong shape"])
    with pytest.raises(TrainingStopped, match=r"shape \(2, 5\), expected \(2, 4\)"):
        strategy.start(LocalGrid(quadratic_app(), 6, spoil=spoil), initial(), num_rounds=9)
    assert len(strategy.history) == 5


def test_views_equal_flowers_own_decoding_and_packing() -> None:
    rng = np.random.default_rng(0)
    samples = [
        rng.standard_normal((3, 4)).astype(np.float32),
        np.asfortranarray(rng.standard_normal((3, 4))),
        np.asarray(2.5, np.float16),
        np.asarray(True),
        np.zeros((0, 3), np.int64),
        rng.standard_normal((4, 6))[::2, ::3],
    ]
    for sample in samples:
        theirs = Array(sample)
        np.testing.assert_array_equal(view(theirs), theirs.numpy())
        ours = pack(sample)
        assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
        np.testing.assert_array_equal(ours.numpy(), sample)
        if sample.flags.c_contiguous:
            assert ours.data == theirs.data


def test_finite_is_exact() -> None:
    big = np.full(1000, 3e38, np.float32)  # its sum overflows, its numbers do not
    assert finite(big)
    assert finite(np.full(1000, 6e4, np.float16))
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = big.copy()
        spoilt[500] = bad
        assert not finite(spoilt)
    assert not finite(np.asarray([math.inf, -math.inf], np.float32))
    assert not finite(np.asfortranarray([[1.0, math.nan], [2.0, 3.0]]))
    assert finite(np.asarray([2**62]))
