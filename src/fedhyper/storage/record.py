"""What is written down about a round: one line of ``metrics.jsonl``, the same for the simulator and for Flower."""

from __future__ import annotations

import math
from typing import Any, NotRequired, TypedDict, cast


class RoundRecord(TypedDict):
    """One round. A number that is not known, or not finite, is None; rates have no unit; times are in seconds."""

    round: int  # counted from 1
    global_lr: float | None  # α_t, which the server's step was multiplied with
    local_lr: float | None  # β_t, the mean over the clients of the rates they used
    local_lr_min: float | None
    local_lr_max: float | None
    hypergrad: float | None  # what moved the rates; None: there is none, or it could not be used
    cosine: float | None  # of this round's aggregate with the one before
    update_norm: float | None  # |Δ_t|
    train_loss: float | None  # mean over the clients' local steps
    test_loss: float | None  # None: not evaluated in this round
    accuracy: float | None  # a fraction; None: not evaluated in this round
    seconds_train: float | None
    seconds_aggregate: float | None
    seconds_evaluate: float | None
    bytes_up: int | None
    bytes_down: int | None
    clients_used: int
    clients_rejected: int  # replies that were refused
    reject_reasons: dict[str, int]  # reason → how many replies
    rollback: bool  # whether the weights went back to the last good ones
    start_trials: NotRequired[int]  # local rounds beyond one a client, in a round whose clients tried rates out
    start_failed: NotRequired[bool]  # True: no rate found, for none made a difference that could be told
    validation_accuracy: NotRequired[float | None]  # on what the server holds out; None: not evaluated
    epsilon: NotRequired[float | None]  # ε(δ) spent so far, in a private run; None: none holds
    client_accuracy: NotRequired[list[float]]  # on each client's own data, in client order


def finite(record: dict[str, Any]) -> RoundRecord:
    """``record`` with None for every number that JSON cannot hold."""
    return cast(
        RoundRecord, {key: _finite(value) for key, value in record.items()}
    )  # the keys are the caller's; a test holds both callers to them


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
