"""Private training: the accountant, the order clip → mean → noise, and what else the server may not see."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper.automatic.ladder import RUNGS
from fedhyper.errors import UserError
from fedhyper.lab.config.model import dump, make_config
from fedhyper.lab.config.toml import parse_toml
from fedhyper.lab.results.report import write_report
from fedhyper.lab.running.run import run_experiment
from fedhyper.privacy import ORDERS, Privacy
from fedhyper.sim.engines.hostile import ATTACKS, HostileEngine
from fedhyper.storage.files import read_json

from .sim_support import batchnorm_net, make_simulation, run

PRIVATE: dict[str, Any] = {
    "privacy": Privacy(noise=0.5, clip=1.0),
    "weighting": "uniform",
    "sampling": "poisson",
    "norm_cap": 0.0,
    "clients": 40,
    "clients_per_round": 20,
}


# The accountant ------------------------------------------------------------------------------------------------------

# (z, q, rounds) → ε(1e-5), by dp-accounting 0.6.0: RdpAccountant(orders=ORDERS, ADD_OR_REMOVE_ONE)
# .compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds).get_epsilon(1e-5)
EPSILONS = [
    (1.0, 0.05, 100, 4.111651877541296),
    (0.6, 0.1, 200, 38.223733597080994),
    (2.0, 0.02, 1000, 1.4584696078820785),
    (4.0, 0.1, 100, 1.0817024008570084),
    (1.0, 1.0, 10, 19.801691480042894),
]


@pytest.mark.parametrize(("noise", "share", "rounds", "epsilon"), EPSILONS)
def test_epsilon_is_that_of_dp_accounting(noise: float, share: float, rounds: int, epsilon: float) -> None:
    assert Privacy(noise=noise).epsilon(rounds, share) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_least_noise_that_is_allowed_has_an_epsilon(share: float) -> None:
    quiet = Privacy(noise=1e-9)
    assert 1e15 < quiet.epsilon(1_000_000, share) < math.inf
    assert quiet.on_updates(10) == pytest.approx(1e-9)
    with pytest.raises(ValueError, match="noise must be at least 1e-09, got 1e-10"):
        Privacy(noise=1e-10)


@pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="pip install 'fedhyper[dp]'")
@pytest.mark.parametrize(("noise", "share", "rounds", "epsilon"), EPSILONS)
def test_epsilon_against_dp_accounting_itself(noise: float, share: float, rounds: int, epsilon: float) -> None:
    import dp_accounting  # type: ignore[import-not-found]

    accountant = dp_accounting.rdp.RdpAccountant(orders=list(ORDERS))
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, rounds)
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_epsilon_by_hand() -> None:
    # everybody in every round: at order α the divergence of t rounds is t·α/2z²; z = 2, t = 4 gives α/2
    orders = [a / 2 + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1) for a in ORDERS]
    assert Privacy(noise=2.0).epsilon(4, 1.0) == pytest.approx(min(orders))
    assert Privacy().epsilon(0, 0.1) == 0.0


def test_more_noise_fewer_rounds_and_rarer_clients_are_more_private() -> None:
    base = Privacy(noise=1.0).epsilon(100, 0.1)
    assert Privacy(noise=2.0).epsilon(100, 0.1) < base
    assert Privacy(noise=1.0).epsilon(50, 0.1) < base
    assert Privacy(noise=1.0).epsilon(100, 0.05) < base
    assert Privacy(noise=1.0, delta=1e-3).epsilon(100, 0.1) < base


# One round -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda v: {"a": np.array(v[:1]), "b": np.array(v[1:])}])
def test_clip_by_hand(make: Any) -> None:
    rule = Privacy(clip=1.0)
    cut, below = rule.clipped(make([3.0, 4.0]), 1.0)  # |(3, 4)| is 5
    flat = np.concatenate([np.asarray(x) for x in cut.values()]) if isinstance(cut, dict) else np.asarray(cut)
    assert flat.tolist() == pytest.approx([0.6, 0.8])
    assert not below
    kept, below = rule.clipped(make([0.3, 0.4]), 1.0)
    assert below
    assert kept is not cut


def test_mean_and_clip_by_hand() -> None:
    fixed = Privacy(noise=2.0, clip=0.5, adaptive=False)
    # total 4, noise 2 · 0.5 · 3 = 3, over 10
    assert fixed.mean(np.array([4.0]), np.array([3.0]), 0.5, 10).tolist() == [pytest.approx(0.7)]
    assert fixed.next_clip(0.5, 10, 10, 0.0, 10) == 0.5
    adaptive = Privacy(noise=1.0)
    # of 100, all below: C falls by e^(-0.2 · 1/2); none: it rises by as much; half: it stays
    assert adaptive.next_clip(1.0, 100, 100, 0.0, 100) == pytest.approx(math.exp(-0.1))
    assert adaptive.next_clip(1.0, 0, 100, 0.0, 100) == pytest.approx(math.exp(0.1))
    assert adaptive.next_clip(1.0, 50, 100, 0.0, 100) == pytest.approx(1.0)
    # 1/z² = 1/z_Δ² + 1/(2 · 5)²
    assert adaptive.on_updates(100) ** -2 == pytest.approx(1 - 1 / 100)
    with pytest.raises(ValueError, match=r"privacy.noise = 1 is too much .* use more than 10 clients a round"):
        adaptive.on_updates(10)


def test_no_update_adds_more_than_its_share() -> None:
    """The same noise, one client that sends 1e6 times as much: the mean moves by at most 2C/M."""
    norms = []
    for attack in ("silent", "× 1e6"):
        simulation = make_simulation("fedavg", **PRIVATE | {"privacy": Privacy(noise=1e-6, clip=0.1, adaptive=False)})
        simulation.engine = HostileEngine(simulation.engine, ATTACKS[attack], {int(i) for i in range(40)})
        norms.append(run(simulation, 1)[0]["update_norm"])
    assert norms[0] < 1e-5
    assert norms[1] <= 0.1 * 40 / 20


def test_a_round_has_its_noise_even_if_nobody_comes() -> None:
    simulation = make_simulation("fedavg", **PRIVATE | {"clients_per_round": 1, "privacy": Privacy(adaptive=False)})
    records = run(simulation, 6)
    nobody = [record for record in records if record["clients_used"] == 0]
    assert nobody
    assert all(record["update_norm"] > 1 for record in nobody)


def test_votes_are_counted_with_noise() -> None:
    rule, quiet = Privacy(noise=2.0), [0.0] * RUNGS
    votes = [-2] * 30 + [-1] * 40 + [3] * 5
    assert Counter(rung for rung, _ in rule.counted(votes, quiet)) == {-2: 30, -1: 40}  # five could be noise
    loud = [1.5] * RUNGS  # adds 3 to every bin: still no vote where nobody voted
    assert Counter(rung for rung, _ in rule.counted(votes, loud)) == {-2: 33, -1: 43, 3: 8}
    assert rule.counted([], quiet) == ()


def test_a_private_run_starts_where_its_clients_vote() -> None:
    simulation = make_simulation("fedhyper", local_lr=1e-5, **PRIVATE)
    simulation.run_round(evaluate=False)
    simulation.close()
    assert 0.01 < simulation.server_state.local_lr < 10


# What a server sees --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedhyper", "fedhyper-g", "fedexp", "fedadam"])
def test_losses_and_lengths_stay_with_the_clients(method: str) -> None:
    """Whatever clients say of their losses and rates, the run has the same bits."""
    digests = set()
    for lie in (False, True):
        simulation = make_simulation(method, **PRIVATE)
        if lie:
            attack = lambda r, known: r._replace(first_loss=9e9, lr_last=7.0, examples=2**53)  # noqa: E731
            simulation.engine = HostileEngine(simulation.engine, attack, range(40))
        records = run(simulation, 4)
        assert all(record["train_loss"] is None for record in records)
        assert [record["epsilon"] for record in records] == sorted(record["epsilon"] for record in records)
        digests.add(simulation.weights_sha256())
    assert len(digests) == 1


def test_statistics_that_have_no_noise_are_refused() -> None:
    with pytest.raises(UserError, match="averages statistics"):
        make_simulation("fedavg", model=batchnorm_net(), **PRIVATE)


def test_the_same_bits_for_any_number_of_workers() -> None:
    digests = set()
    for workers in (1, 2):
        simulation = make_simulation("fedhyper", workers=workers, **PRIVATE)
        run(simulation, 3)
        digests.add(simulation.weights_sha256())
    assert len(digests) == 1


# Through a config ----------------------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "rounds": 4, "clients": 40, "clients_per_round": 20, "batch_size": 16, "local_lr": 0.1, "checkpoint_every": 2,
    "privacy": {"noise": 0.5},
}  # fmt: skip


def test_a_private_run_is_continued_to_the_same_bits_and_says_what_it_spent(tmp_path: Path) -> None:
    whole = run_experiment(make_config(CONFIG), tmp_path / "whole", workers=1)
    run_experiment(make_config(CONFIG | {"rounds": 2}), tmp_path / "half", workers=1)
    half = run_experiment(make_config(CONFIG), tmp_path / "half", resume=True, workers=1)
    assert half["weights_sha256"] == whole["weights_sha256"]
    assert half["epsilon"] == whole["epsilon"] == pytest.approx(Privacy(noise=0.5).epsilon(5, 0.5))  # one for the votes
    summary = read_json(tmp_path / "half" / "summary.json")
    assert summary is not None
    assert summary["epsilon"] == whole["epsilon"]


@pytest.mark.parametrize("runs", [1, 2])
def test_the_report_says_what_private_runs_spent_and_draws_it(tmp_path: Path, runs: int) -> None:
    found = []
    for i in range(runs):
        config = make_config(CONFIG | {"rounds": 2, "privacy": {"noise": 0.5 + i, "delta": 1e-4}})
        found.append(run_experiment(config, tmp_path / "runs" / str(i), workers=1)["epsilon"])
    page = write_report([tmp_path / "runs"], tmp_path / "page.html").read_text()
    for epsilon in found:
        assert f"ε = {epsilon:.3g} at δ = 0.0001" in page
    for drawn in ("ε spent by round", "Test accuracy by ε"):
        assert drawn in page
    plain = run_experiment(make_config({"rounds": 2, "clients": 10}), tmp_path / "plain", workers=1)
    assert "epsilon" not in plain
    assert "ε" not in write_report([tmp_path / "plain"], tmp_path / "other.html").read_text()


def test_the_config_of_a_private_run_says_all_of_it() -> None:
    config = make_config(CONFIG)
    assert (config.weighting, config.sampling, config.norm_cap) == ("uniform", "poisson", 0.0)
    assert make_config(parse_toml(dump(config).encode(), "dump")).values() == config.values()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weighting": "examples"}, 'weighting = "examples" does not go with [privacy]; it needs "uniform"'),
        ({"sampling": "size"}, 'sampling = "size" does not go with [privacy]'),
        ({"norm_cap": 2.0}, "norm_cap = 2.0 does not go with [privacy]; it needs 0.0"),
        ({"aggregate": "median"}, 'aggregate = "median" does not go with [privacy]'),
        ({"clients_per_round": 4}, "privacy.noise = 0.5 is too much for an adaptive clip with 4 clients a round"),
        ({"privacy": {"noise": 0}}, "privacy.noise = 0 must be at least 1e-09"),
        ({"privacy": {"noise": 1e-300}}, "privacy.noise = 1e-300 must be at least 1e-09"),  # its square is 0
        ({"privacy": {"delta": 1.0}}, "privacy.delta = 1.0 must be below 1"),
        ({"privacy": {"noize": 1.0}}, "privacy.noize"),
    ],
)
def test_what_does_not_go_with_privacy_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_config(CONFIG | change)
    assert said in str(caught.value)
