"""Digits in NVFlare's simulator from a rate 100 times too small: python job.py

Run it again after a kill and it goes on; delete checkpoint.ckpt to start anew.
"""

import argparse
from pathlib import Path

from digits import Net
from nvflare.recipe.sim_env import SimEnv

from fedhyper.nvflare import FedHyperRecipe

HERE = Path(__file__).parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--local-lr", type=float, default=0.001)
    parser.add_argument("--work", type=Path, default=Path("work").absolute())
    options = parser.parse_args()
    recipe = FedHyperRecipe(
        model=Net(),
        min_clients=options.clients,
        num_rounds=options.rounds,
        train_script=str(HERE / "client.py"),
        train_args=f"--clients {options.clients}",
        schedule=options.schedule,
        local_lr=options.local_lr,
        checkpoint=str(options.work / "checkpoint.ckpt"),
        task_check_period=0.1,
    )
    recipe.execute(SimEnv(num_clients=options.clients, workspace_root=str(options.work)))


if __name__ == "__main__":
    main()
