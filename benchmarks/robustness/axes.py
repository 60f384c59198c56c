"""What is measured: the axes, the five settings that the first form of the rule was held against, and what the
defence against hostile clients costs."""

from __future__ import annotations

from typing import Any

from benchmarks.robustness.settings import DIGITS, FMNIST, SEEDS, SIX, SPEECH, SST2, Axis, Flat, Setting


def _digits(name: str, **changes: Any) -> Setting:
    return Setting(f"digits, {name}", DIGITS | _dotted(changes))


def _fmnist(name: str, **changes: Any) -> Setting:
    return Setting(f"Fashion-MNIST, {name}", FMNIST | _dotted(changes), seeds=SEEDS[:2], search=1)


def _dotted(changes: Flat) -> Flat:
    return {key.replace("__", "."): value for key, value in changes.items()}


def _but(setting: Setting, **changes: Any) -> Setting:
    return Setting(**{**vars(setting), **changes})


def _task(name: str, base: Flat, **changes: Any) -> Setting:
    return Setting(name, base | _dotted(changes), target=0.5, search=1, least=6)


_SHARDS = {"partition__kind": "shards", "partition__shards_per_client": 2, "partition__concentration": 0.5}
_SKEWS: dict[str, Flat] = {
    "IID": {"partition__kind": "iid"},
    "Dirichlet 0.5": {},
    "Dirichlet 0.1": {"partition__concentration": 0.1},
    "Dirichlet 0.05": {"partition__concentration": 0.05},
    "two shards a client": _SHARDS,
}
_COHORTS: dict[str, Flat] = {
    "1 client a round": {"clients_per_round": 1},
    "3 clients a round": {"clients_per_round": 3},
    "10 clients a round": {},
    "50 of 100 clients a round": {"clients": 100, "clients_per_round": 50},
    "4 clients, all of them": {"clients": 4, "clients_per_round": 4},
}
_CLIENTS: dict[str, tuple[Flat, float]] = {
    "sgd": ({}, 0.1),
    "momentum 0.9": ({"local_optimizer": "momentum"}, 0.03),
    "adam": ({"local_optimizer": "adam"}, 0.003),
    "adamw": ({"local_optimizer": "adamw", "weight_decay": 0.01}, 0.003),
}
_LENGTHS = tuple((rounds, epochs) for rounds in (3, 12, 50, 300) for epochs in (1, 5, 10))
# Of Fashion-MNIST those that two cores can do in half an hour
_FEW = ((3, 10), (12, 5), (12, 10), (50, 1), (300, 1))
# A row that missed its target against the oracle on two or three seeds was then run on six: is it noise?
_DOUBTED, _DOUBTED_IMAGES = ((3, 1),), ((3, 10), (50, 1))


def _length(rounds: int, epochs: int) -> tuple[str, Flat]:
    if epochs == 1:
        return f"{rounds} rounds × 1 epoch", {"rounds": rounds}
    return f"{rounds} rounds × {epochs} epochs", {"rounds": rounds, "local_epochs": epochs}


_LONG = [
    _but(
        _digits(_length(*pair)[0], **_length(*pair)[1]),
        search=1 if pair[0] * pair[1] >= 500 else 3, seeds=SIX if pair in _DOUBTED else SEEDS,
    )
    for pair in _LENGTHS
]  # fmt: skip
_LONG_IMAGES = [
    _but(
        _fmnist(_length(*pair)[0], **_length(*pair)[1], eval_every={3: 1, 12: 1, 50: 2, 300: 6}[pair[0]]),
        seeds=SIX if pair in _DOUBTED_IMAGES else SEEDS[:2],
    )
    for pair in _FEW
]

_BASE = _digits("MLP, Dirichlet 0.5")
# At Dirichlet 0.5 no run of the digits ever goes back to older weights, so lies about losses have little to act on.
# Here three of six honest runs do: chosen for that, after the runs of the skew axis were seen.
_SKEWED = _but(_digits("two shards a client", **_SHARDS), seeds=SIX)
_IMAGES = _fmnist("Dirichlet 0.5")
_SOFTMAX_MANY = Setting(
    "MNIST softmax, 1,000 clients, 50 a round, 100 rounds",
    DIGITS | {"task": "mnist", "model": "logistic", "clients": 1000, "clients_per_round": 50, "batch_size": 10}
    | {"rounds": 100, "eval_every": 2},
    search=1,
)  # fmt: skip

# Auto's seven settings, halved and doubled; of momentum μ the memory 1/(1 − μ), of share as far as it goes
CHANGES: dict[str, Flat] = {
    "ratio ÷ 2": {"ratio": 10**0.5 / 2},
    "ratio × 2": {"ratio": 2 * 10**0.5},
    "voices ÷ 2": {"voices": 5},
    "voices × 2": {"voices": 20},
    "gain ÷ 2": {"gain": 1.0},
    "gain × 2": {"gain": 4.0},
    "ahead ÷ 2": {"ahead": 6},
    "ahead × 2": {"ahead": 24},
    "share ÷ 2": {"share": 0.4},
    "share at its highest, 1": {"share": 1.0},
    "momentum's memory ÷ 2": {"momentum": 0.6},
    "momentum's memory × 2": {"momentum": 0.9},
    "recency ÷ 2": {"recency": 1.5},
    "recency × 2": {"recency": 6.0},
}
_SMALL = {"model_options__hidden": 64, "model_options__layers": 1}
_KINDS = (
    _BASE,
    _digits("softmax, 3 clients a round", model="logistic", clients_per_round=3),
    _digits("Dirichlet 0.1, 12 rounds × 10 epochs", rounds=12, local_epochs=10, partition__concentration=0.1),
    _but(_SOFTMAX_MANY, seeds=SEEDS[:2]),
    _but(_fmnist("Dirichlet 0.1", partition__concentration=0.1), name="Fashion-MNIST CNN, Dirichlet 0.1"),
)

LIES = {"× 3": "times 3", "1e9": "1e9", "−1e9": "-1e9", "NaN": "nan", "absent": "absent"}


def _liars(setting: Setting) -> list[Setting]:
    rows = []
    for count, when in ((1, "once"), (1, "always"), (2, "always")):
        for shown, lie in LIES.items():
            who = f"{'one' if count == 1 else 'two'} of ten, loss {shown}, {when}"
            options = {"lie": lie, "liars": count, "once": when == "once"}
            name = f"{setting.name}: {who}"
            rows.append(_but(setting, name=name, options=options, method="fedhyper-liars"))
    return rows


def _as_it_comes(*settings: Setting) -> tuple[Setting, ...]:
    once = {setting.key: _but(setting, defended=True, ours=(), starts=(1e-3,)) for setting in settings}
    return tuple(once.values())


# In the order in which they are run: what says most first, what takes longest last
AXES: dict[str, Axis] = {
    "skew": Axis(
        "Skew",
        "at most 1 point under the oracle; no run of six seeds more than 3 under",
        (
            *(_but(_digits(name, **changes), ours=SIX) for name, changes in _SKEWS.items()),
            *(_but(_fmnist(name, **changes), ours=SIX) for name, changes in _SKEWS.items()),
        ),
        worst=3.0,
        note="A single run is held against the oracle's mean, which on Fashion-MNIST is that of two seeds. The one "
        "that is 3.4 under it has seed 24,\nwhich is harder: with the oracle's own rates and decay it ends at 70.5, "
        "fedhyper at 70.4 (seed 25: 70.7 and 71.3, seed 22: 72.3 and 71.1).",
    ),
    "issue": Axis(
        "The first form's five settings",
        "at most 1 point under the oracle",
        (
            _SOFTMAX_MANY,
            _digits("MLP, Dirichlet 0.3, 300 rounds", rounds=300, partition__concentration=0.3),
            _but(
                _fmnist("", task="mnist", rounds=40, **_SHARDS),
                name="MNIST CNN (15,000 images), two shards a client, 40 rounds", seeds=SIX,
            ),
            _but(
                _fmnist("MLP, 5 epochs, Dirichlet 0.3, 20 rounds", model="mlp", rounds=20, local_epochs=5, eval_every=1,
                        partition__concentration=0.3),
                seeds=SEEDS,
            ),
            _but(_fmnist("CNN, Dirichlet 0.1, 60 rounds", rounds=60, partition__concentration=0.1), seeds=SEEDS),
        ),
    ),
    "tasks": Axis(
        "Tasks",
        "worst start of {1e-6, 1e-3, 1, 100} at most half a point under the oracle",
        (
            _but(_task("digits, MLP", DIGITS), search=3, starts=(1e-3, 1e-6, 100.0)),
            _but(_task("digits, softmax", DIGITS, model="logistic"), search=3),
            _task("MNIST, CNN", FMNIST, task="mnist", subset=0, eval_every=5),
            _task("Fashion-MNIST, CNN", FMNIST, subset=0, eval_every=5),
            _but(_task("Shakespeare, LSTM of 64", SPEECH, **_SMALL), middle=1.0),
            _task("CIFAR-10, CNN, 60 rounds", FMNIST, task="cifar10", subset=0, rounds=60, batch_size=32, eval_every=5),
            _task("Shakespeare, transformer of 2 × 64, 50 rounds", SPEECH, model="transformer", rounds=50),
            _but(_task("SST-2, LoRA on a pretrained MiniLM, AdamW, 10 rounds", SST2), middle=0.003, seeds=SIX),
        ),
        note="SST-2: seed 24 was not run again when local rates of short runs could fall, for want of time. Of the "
        "other five four are\nthe same runs to the last digit, and one has a rate that falls: 82.2, as before.",
    ),
    "cohort": Axis(
        "Cohort",
        "at most 1 point under the oracle",
        (
            *(_digits(name, **changes) for name, changes in _COHORTS.items()),
            *(_fmnist(name, **changes) for name, changes in list(_COHORTS.items())[:3]),
            _fmnist("50 of 100 clients a round, 20 rounds", clients_per_round=50, rounds=20),
            _fmnist("4 clients, all of them, 10 rounds", clients=4, clients_per_round=4, rounds=10, eval_every=1),
        ),
    ),
    "clients": Axis(
        "Client optimizer",
        "at most 1 point under the oracle",
        (
            *(_but(_digits(name, **values), middle=middle) for name, (values, middle) in _CLIENTS.items()),
            *(_but(_fmnist(name, **values), middle=middle) for name, (values, middle) in _CLIENTS.items()),
        ),
    ),
    "liars": Axis(
        "Clients that lie about their loss",
        "at most 1 point under the run without liars; after the start its rates above r⁻³ times that run's lowest and "
        "below r times its highest (r = √10)",
        (*_liars(_BASE), *_liars(_SKEWED), *_liars(_IMAGES)),
        note="The lie is told where the server listens; updates are honest. *Two shards a client* was added after the "
        "skew axis was seen:\nat Dirichlet 0.5 no honest run of the digits goes back to older weights, so lies have "
        "little to act on; there three of six do.\nLocal rates are those of rounds in which all clients had one: a "
        "client that gives no vote makes the start a round longer.",
    ),
    "constants": Axis(
        "Constants",
        "no cell loses more than 1 point",
        tuple(
            _but(kind, name=f"{kind.name}: {change}", options=options)
            for kind in _KINDS
            for change, options in CHANGES.items()
        ),
        note="Difference to the rule as it is, in points; more than 1 lost is bold. Momentum is changed by "
        "its memory 1/(1 − μ).\n"
        "Tried where a cell is lost, six seeds of the first two settings, `norm_cap` as it comes. Ratio "
        "× 2, -0.9 and -1.4\n"
        "while a step of the rate was not measured in rungs: with gain × 2 0.0 and -0.8 (nearly what it "
        "is now), momentum 0.9\n"
        "-0.4 and -0.3, recency × 2 -0.7 and -1.1, ahead × 2 and voices × 2 no better. Momentum's "
        "memory ÷ 2, -0.4 and -1.2:\n"
        "with gain × 2 -0.2 and -0.9, recency × 2 -0.2 and -1.0, a ladder of fourth roots of 10 -0.2 "
        "and -0.8. So a longer\n"
        "memory is worth a point where three clients train in a round, and twice as long a one no more.",
    ),
    "rounds": Axis(
        "Rounds × local epochs",
        "at most 1 point under the oracle; at 95 % of the oracle's end at most 2 rounds after it",
        (*_LONG, *_LONG_IMAGES),
        late=2,
        note="Runs of 12 rounds or fewer are raced to their end "
        "([what was tried](start.md#short-runs-the-global-rate-too)).\ndigits, 3 rounds × 1 epoch, was 5.4 under "
        "until local rates could fall: 57.6, now 65.6; FedAvgM at the oracle's rates without a fall ends at 56.8.\n"
        "That a fall was lacking was seen on these seeds, how it is found was chosen on others "
        "([figures](start.md#a-local-rate-that-falls)).\n"
        "Fashion-MNIST, 50 rounds, is met on six seeds; its first is late: "
        "FedAvgM is at 95 % after 16 and 26 rounds, fedhyper after 24 and 26. Tried there:\nrecency 7 (24, 26), "
        "momentum 0.9 (24, 26), gain 4 (22, 26), a ladder of fourth roots of 10 (18, 26; twice as many rates to try).\n"
        "Fashion-MNIST, 3 rounds × 10 epochs: one seed of six ended a tenth under 95 % of the oracle's end (69.4) "
        "until local rates could fall: 75.0.",
    ),
    "defended": Axis(
        "With the default defence",
        "at most 1 point under the oracle, which has none",
        _as_it_comes(
            *(_digits(name, **changes) for name, changes in _SKEWS.items()),
            _digits("softmax", model="logistic"),
            *(_digits(name, **changes) for name, changes in _COHORTS.items()),
            *(_but(_digits(name, **values), middle=middle) for name, (values, middle) in _CLIENTS.items()),
            *_LONG,
            *(_fmnist(name, **_SKEWS[name]) for name in ("Dirichlet 0.1", "Dirichlet 0.05")),
        ),
        note="All other tables have `norm_cap = 0`, for fedhyper and for its rivals: the defence costs whoever has it, "
        "FedAvg more than fedhyper\n([figures](../security.md)). Here fedhyper has it as it comes, the rivals still "
        "have none.",
    ),
}  # fmt: skip
SMOKE: dict[str, Axis] = {
    "smoke": Axis(
        "Smoke",
        "none: two short runs to see that all parts work",
        (
            Setting("digits, 4 rounds", DIGITS | {"rounds": 4}, seeds=(20,), search=1, least=3, starts=(1e-6, 100.0)),
            Setting(
                "digits, 4 rounds, two of ten lie", DIGITS | {"rounds": 4}, seeds=(20,), method="fedhyper-liars",
                options={"lie": "nan", "liars": 2, "once": False},
            ),
        ),
    )
}  # fmt: skip
