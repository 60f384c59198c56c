"""What the server runs."""

import hashlib

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.task import load, new_model, test
from fedhyper.flower import FedHyper

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say after every round how good the model is on the test set."""
    config = context.run_config
    task, model = load(str(config["task"])), new_model(config)
    torch.set_num_threads(1)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, task.test_x, task.test_y)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = FedHyper(
        FedAvg(fraction_train=float(config["fraction-train"]), fraction_evaluate=0.0),
        str(config["schedule"]),
        local_lr=float(config["local-lr"]),
        global_lr=float(config["global-lr"]),
        seed=int(config["seed"]),
        checkpoint=str(config["checkpoint"]) or None,
        run_dir=str(config["run-dir"]) or None,
    )
    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
        resume=bool(config["resume"]),
    )
    digest = hashlib.sha256(b"".join(array.data for array in result.arrays.values())).hexdigest()
    print(f"rounds {len(strategy.history)}, weights {digest[:16]}", flush=True)
