"""Private training: what one client adds to a run is hidden in noise (user-level, central differential privacy).

    clip      Δ_m ← Δ_m · min(1, C/|Δ_m|)                       nobody adds more than C to the sum
    mean      all clients alike, over how many were expected: a number that no client can change
    noise     (Σ Δ_m + z·C·N(0, 1)) / M
    schedule  and then rates, momentum, rollbacks and the model are computed from that, and cost nothing more

So the order is the only right one: whatever is made of the noisy mean is as private as the mean. What else a plan may
read is not covered by it, and is not read: clients' losses and |Δ_m|². Votes for a rate are counted with noise, which
costs one round more. Each client takes part in a round by a coin of its own, with probability q = M/N (Poisson
sampling), for which ``epsilon`` is valid.

McMahan et al. 2018 (order), Andrew et al. 2021 (adaptive clipping), Mironov et al. 2019 (accounting).
"""

from fedhyper.privacy.accountant import ORDERS
from fedhyper.privacy.mechanism import Privacy

__all__ = ["ORDERS", "Privacy"]
