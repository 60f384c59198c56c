"""The server: FedAvg over the adapters and the classifier, with fedhyper around it."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedhyper.flower import FedHyper
from finetune.setting import setting, trained

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds, and the accuracy on the test sentences after each."""
    task, net = setting(context.run_config["size"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        net.eval()
        with torch.no_grad():
            scores = torch.cat([net(x) for x in task.test_x.split(100)])
        right = (scores.argmax(1) == task.test_y).float().mean()
        return MetricRecord({"accuracy": right.item(), "loss": F.cross_entropy(scores, task.test_y).item()})

    strategy = FedAvg(fraction_evaluate=0.0)
    if context.run_config["fedhyper"]:
        strategy = FedHyper(strategy)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(trained(net)),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
