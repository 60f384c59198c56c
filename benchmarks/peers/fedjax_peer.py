"""FedJAX on the CPU: its federated averaging, jit backend; a short last batch is padded and masked, as it recommends.

python fedjax_peer.py DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import protocol

line = protocol.private_stdout()
import jax  # noqa: E402

# FedJAX 0.0.17 uses a name that JAX has since dropped; an older JAX would be slower.
jax.tree_map = jax.tree_util.tree_map
import fedjax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


def conv_block(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """5×5 convolution, ReLU, pool by 2, on NHWC."""
    y = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
    return jax.lax.reduce_window(jax.nn.relu(y), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def scores(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The workload's model: with convolutions or without."""
    if "w1" in params:
        x = conv_block(x, params["w1"], params["b1"])
        x = conv_block(x, params["w2"], params["b2"])
    return x.reshape(len(x), -1) @ params["w"] + params["b"]


def from_flat(flat: protocol.Floats, cnn: bool) -> dict[str, np.ndarray]:
    """torch's vector (O, I, H, W; features C, H, W) to HWIO and features H, W, C."""
    if not cnn:
        inputs = (len(flat) - 10) // 10
        return {"w": flat[: 10 * inputs].reshape(10, inputs).T, "b": flat[10 * inputs :]}
    w1, b1, w2, b2, w, b = np.split(flat, np.cumsum([400, 16, 12800, 32, 15680]))
    return {
        "w1": w1.reshape(16, 1, 5, 5).transpose(2, 3, 1, 0),
        "b1": b1,
        "w2": w2.reshape(32, 16, 5, 5).transpose(2, 3, 1, 0),
        "b2": b2,
        "w": w.reshape(10, 32, 7, 7).transpose(2, 3, 1, 0).reshape(1568, 10),
        "b": b,
    }


def to_flat(params: dict[str, jax.Array]) -> protocol.Floats:
    """The way back."""
    p = {name: np.asarray(value) for name, value in params.items()}
    if "w1" not in p:
        return np.concatenate([p["w"].T.ravel(), p["b"]])
    w = p["w"].reshape(7, 7, 32, 10).transpose(3, 2, 0, 1)
    convs = [part for i in "12" for part in (p[f"w{i}"].transpose(3, 2, 0, 1).ravel(), p[f"b{i}"])]
    return np.concatenate([*convs, w.ravel(), p["b"]])


class Batches:
    """What the algorithm asks a client's data for: its size, and batches in the order that we give."""

    def __init__(self, x: np.ndarray, y: np.ndarray, client: protocol.Client, batch_size: int) -> None:
        self.x, self.y, self.client, self.batch_size = x, y, client, batch_size

    def __len__(self) -> int:
        return self.client.examples

    def shuffle_repeat_batch(self, hparams: object) -> Iterator[dict[str, np.ndarray]]:
        for batch in self.client.batches:
            rows = np.zeros(self.batch_size, np.int64)
            rows[: len(batch)] = batch
            mask = np.arange(self.batch_size) < len(batch)
            yield {"x": self.x[rows], "y": self.y[rows], "__mask__": mask.astype(np.float32)}


def main() -> None:
    """Serve rounds."""
    work = protocol.Work(sys.argv[1])
    x, y = work.train()
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    model = fedjax.Model(
        init=lambda rng: None,
        apply_for_train=lambda params, batch, rng: scores(params, batch["x"]),
        apply_for_eval=lambda params, batch: scores(params, batch["x"]),
        train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
        eval_metrics={},
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.local_lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size),
    )
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, from_flat(work.weights(), work.model == "cnn")))
    rng = jax.random.PRNGKey(0)

    def run(clients: list[protocol.Client]) -> None:
        nonlocal state
        cohort = [(client.number, Batches(x, y, client, work.batch_size), rng) for client in clients]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)

    protocol.serve(line, work, run, lambda: to_flat(state.params))


if __name__ == "__main__":
    main()
