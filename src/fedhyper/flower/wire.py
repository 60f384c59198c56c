"""Every name that goes over the wire between a Flower server and its clients, once.

What begins with ``fedhyper.`` is ours: an inner strategy never sees it, and a client without our helpers ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import MessageType

PREFIX = "fedhyper."

# Server to client, in the train config
LOCAL_LR = "local-lr"  # β_t, a finite number above 0
SERVER_ROUND = "server-round"  # Flower's own: the round, from 1

CLIMB = f"{PREFIX}climb"  # the factor between two rates, of which a client that can may try several
BINNED = f"{PREFIX}binned"  # True: only sums of replies are looked at, so that votes come as VOTES

# Server to client, in the train config, too: a record of their own is more than Flower's own mods put up with
CLIENT = f"{PREFIX}client."  # before each setting of the rule that clients run each step (FedHyper-CL)
DELTA = f"{PREFIX}delta"  # bytes: Δ_t-1, for the rule's global term, array after array
DELTA_NAMES = f"{PREFIX}delta-names"  # of which arrays, in which order
DELTA_TYPE = f"{PREFIX}delta-type"  # float32 or float16

# Client to server, metrics of a train reply
EXAMPLES = "num-examples"  # Flower's own: the reply's weight
LOSS = f"{PREFIX}loss"  # at the weights that were sent, before the first step
MEAN_LOSS = f"{PREFIX}train-loss"  # mean over the local steps, each before the step
USED_LR = f"{PREFIX}lr"  # the rate that was really used
VOTE = f"{PREFIX}vote"  # the rung a client liked best, of several it tried; GAIN: what that gained
GAIN = f"{PREFIX}gain"
VOTES = f"{PREFIX}votes"  # in place of both: a list of numbers that a mean can be made of, see Ladder.binned
SQ_NORM = f"{PREFIX}sq-norm"  # |Δ_m|²
ROUND = f"{PREFIX}round"  # the round that is answered
PARTITION = f"{PREFIX}partition"  # the partition that the node holds

# The question which partition a node holds, and the answer
ACTION = "fedhyper"
QUESTION = f"{MessageType.QUERY}.{ACTION}"
ANSWER = f"{PREFIX}node"  # ConfigRecord
PARTITION_ID = "partition-id"  # Flower's own names in a node's config
NUM_PARTITIONS = "num-partitions"

# In a client's own context, between rounds
KEPT = f"{PREFIX}weights"
KEPT_ROUND = f"{PREFIX}round"

Value = TypeVar("Value")


def without_ours(named: Mapping[str, Value]) -> dict[str, Value]:
    """The app's own records or metrics."""
    return {key: value for key, value in named.items() if not key.startswith(PREFIX)}
