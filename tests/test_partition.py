"""Laws of every split: disjoint, complete, a minimum size, a function of its seed and nothing else."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhyper.errors import DataError, UserError
from fedhyper.sim.data.partition import KINDS, Partition, make_partition

LABELS = np.random.default_rng(3).integers(0, 10, 5_000)


def groups_of(n: int, count: int) -> list[np.ndarray]:
    """``count`` groups of very different sizes."""
    cuts = np.unique(np.linspace(0, 1, count + 1)[1:-1] ** 2 * n).astype(int)
    return np.split(np.arange(n), cuts)


@st.composite
def requests(draw: st.DrawFn) -> dict:
    labels = np.array(draw(st.lists(st.integers(0, 6), min_size=1, max_size=200)))
    clients = draw(st.integers(1, len(labels)))
    kind = draw(st.sampled_from(KINDS))
    request = {
        "kind": kind,
        "labels": labels,
        "clients": clients,
        "seed": draw(st.integers(0, 2**40)),
        "concentration": draw(st.floats(1e-3, 1e6)),
        "shards_per_client": draw(st.integers(1, len(labels) // clients)),
        "min_size": draw(st.integers(0, len(labels) // clients)),
    }
    if kind == "natural":
        request |= {"groups": np.split(np.arange(len(labels)), np.arange(1, clients)), "min_size": 1}
    return request


@given(requests())
@settings(max_examples=300, deadline=None)
def test_every_split_is_disjoint_complete_and_large_enough(request_: dict) -> None:
    partition = make_partition(**request_)
    assert partition.clients == request_["clients"]
    parts = [partition.client(i) for i in range(partition.clients)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(request_["labels"])))
    assert min(map(len, parts)) >= request_["min_size"]
    assert [len(part) for part in parts] == partition.sizes.tolist()
    if partition.class_counts is not None:
        for part, counts in zip(parts, partition.class_counts, strict=True):
            expected = np.bincount(request_["labels"][part], minlength=len(counts))
            assert np.array_equal(expected, counts)


@given(requests())
@settings(max_examples=50, deadline=None)
def test_a_split_survives_json(request_: dict) -> None:
    partition = make_partition(**request_)
    again = Partition.from_json(json.loads(json.dumps(partition.to_json())))
    assert again.sha256 == partition.sha256
    assert np.array_equal(again.indices, partition.indices)
    assert again.to_json() == partition.to_json()


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_the_seed_decides_and_the_global_generator_does_not(kind: str) -> None:
    np.random.seed(0)
    first = make_partition(kind, LABELS, 50, seed=1, min_size=5)
    state = np.random.get_state()[1].copy()
    np.random.seed(99)
    assert make_partition(kind, LABELS, 50, seed=1, min_size=5).sha256 == first.sha256
    assert make_partition(kind, LABELS, 50, seed=2, min_size=5).sha256 != first.sha256
    np.random.seed(0)
    make_partition(kind, LABELS, 50, seed=3)
    assert np.array_equal(np.random.get_state()[1], state)


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = make_partition("iid", LABELS, 77, seed=0).sizes
    assert sizes.max() - sizes.min() == 1


def test_a_low_concentration_skews_classes_and_a_high_one_does_not() -> None:
    def largest_share(concentration: float) -> float:
        counts = make_partition("dirichlet", LABELS, 20, seed=0, concentration=concentration).class_counts
        assert counts is not None
        return float(np.mean(counts.max(axis=1) / counts.sum(axis=1)))

    assert largest_share(0.05) > 0.6
    assert largest_share(1e4) < 0.2


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution() -> None:
    # The share of one class a client holds has mean 1/K and variance (1/K)(1 - 1/K) / (K c + 1).
    clients, concentration = 20, 0.5
    labels = np.zeros(20_000, int)
    shares = np.concatenate(
        [
            make_partition("dirichlet", labels, clients, seed=s, concentration=concentration, min_size=0).sizes / 20_000
            for s in range(200)
        ]
    )
    assert shares.mean() == pytest.approx(1 / clients)
    expected = (1 / clients) * (1 - 1 / clients) / (clients * concentration + 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_a_class_of_one_example_goes_to_either_client() -> None:
    sizes = make_partition("dirichlet", np.arange(1_000), 2, seed=0, concentration=1.0).sizes
    assert 400 < sizes[0] < 600


def test_shards_give_few_classes() -> None:
    partition = make_partition("shards", np.repeat(np.arange(10), 100), 50, seed=0, shards_per_client=2)
    assert partition.class_counts is not None
    assert (partition.class_counts > 0).sum(axis=1).max() <= 2
    assert (partition.sizes == 20).all()


def test_repair_takes_from_the_largest_and_as_little_as_possible() -> None:
    plain = make_partition("dirichlet", LABELS, 50, seed=0, concentration=0.05, min_size=0)
    repaired = make_partition("dirichlet", LABELS, 50, seed=0, concentration=0.05, min_size=20)
    short = np.maximum(20 - plain.sizes, 0)
    assert short.sum() > 0
    assert int((plain.owners != repaired.owners).sum()) == short.sum()
    gave = plain.sizes - repaired.sizes
    level = repaired.sizes[gave > 0].max()
    assert (plain.sizes[gave == 0] <= level).all()
    assert (repaired.sizes[short > 0] == 20).all()
    donors = plain.owners[repaired.client(int(short.argmax()))]
    assert set(donors.tolist()) == set(np.flatnonzero(gave > 0).tolist())  # an empty client gets a mixture
    # what moves is a fair sample, not the examples with the lowest index
    assert 0.4 < np.mean(np.flatnonzero(plain.owners != repaired.owners)) / len(LABELS) < 0.6


def test_natural_keeps_the_large_groups_and_merges_the_small() -> None:
    groups = groups_of(5_000, 40)
    whole = make_partition("natural", LABELS, 40, seed=0, groups=groups)
    assert sorted(whole.sizes) == sorted(map(len, groups))
    assert whole.class_counts is None
    assert "class_counts" not in whole.to_json()
    merged = make_partition("natural", LABELS, 30, seed=0, groups=groups)
    owners = merged.owners
    for group in groups:
        assert len(set(owners[group].tolist())) == 1
    assert max(merged.sizes) == max(map(len, groups))


def test_a_hundred_thousand_clients_take_seconds() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    start = time.perf_counter()
    partition = make_partition("dirichlet", labels, 100_000, seed=0, concentration=0.1, min_size=2)
    assert time.perf_counter() - start < 10  # 0.6 s on two quiet cores
    assert partition.sizes.min() >= 2
    assert partition.client(99_999).base is not None  # a view


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "dirichlets"}, "did you mean 'dirichlet'?"),
        ({"kind": "zipf"}, "choose one of iid"),
        ({"clients": 0}, "clients = 0"),
        ({"clients": True}, "clients = True"),
        ({"clients": 2.5}, "clients = 2.5"),
        ({"clients": 5_001}, "use clients <= 5000"),
        ({"min_size": 501}, "lower min_size"),
        ({"min_size": -1}, "min_size = -1"),
        ({"concentration": 0.0}, "concentration = 0.0"),
        ({"concentration": float("nan")}, "concentration = nan"),
        ({"concentration": float("inf")}, "use kind = iid"),
        ({"kind": "shards", "shards_per_client": 501}, "shards_per_client = 501"),
        ({"kind": "natural"}, "no natural clients"),
        ({"kind": "natural", "groups": [np.arange(5_000)]}, "more than the 1 natural clients"),
        ({"kind": "natural", "groups": [np.arange(400)] * 12}, "exactly once"),
        ({"kind": "natural", "groups": groups_of(5_000, 10), "min_size": 200}, "lower clients or min_size"),
        ({"labels": [0.5, 1.0]}, "labels must be"),
        ({"labels": []}, "labels must be"),
        ({"labels": [-1, 2]}, "labels must be"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(change: dict, words: str) -> None:
    request_ = {"kind": "dirichlet", "labels": LABELS, "clients": 10, "seed": 0} | change
    with pytest.raises(UserError) as caught:
        make_partition(**request_)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "change",
    [
        {"owners": "not base64"},
        {"owners": ""},
        {"sha256": "0" * 64},
        {"clients": 3},
        {"sizes": [1]},
        {"sizes": None},
        {"kind": None, "sizes": [-5]},
    ],
)
def test_a_damaged_record_is_refused(change: dict) -> None:
    record = make_partition("iid", LABELS, 10, seed=0).to_json() | change
    with pytest.raises(DataError, match=r"partition\.json"):
        Partition.from_json(record)


def test_there_is_no_client_before_the_first_or_after_the_last() -> None:
    partition = make_partition("iid", LABELS, 10, seed=0)
    for i in (-1, 10):
        with pytest.raises(IndexError):
            partition.client(i)
