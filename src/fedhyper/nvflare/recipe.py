"""``FedHyperRecipe``: a job of NVFlare with the controller and a training script, made of NVFlare's public parts."""

from __future__ import annotations

from typing import Any

from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.base_fed_job import BaseFedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner
from nvflare.recipe.spec import Recipe

from fedhyper.nvflare.controller import FedHyper


class FedHyperRecipe(Recipe):  # type: ignore[misc]  # NVFlare has no types
    """As NVFlare's FedAvgRecipe for PyTorch, with FedHyper in the place of FedAvg.

    model         the torch model to start from
    min_clients   clients a round
    num_rounds    rounds in all, those before a restart included
    train_script  the file that every client runs; it uses ``fedhyper.nvflare.local_lr`` and ``reply``
    train_args    its command line
    name          of the job
    settings      those of ``FedHyper``: schedule, local_lr, global_lr, checkpoint, stop_cond, ...
    """

    def __init__(
        self,
        *,
        model: Any,
        min_clients: int,
        num_rounds: int,
        train_script: str,
        train_args: str = "",
        name: str = "fedhyper",
        **settings: Any,
    ) -> None:
        job = BaseFedJob(name=name, min_clients=min_clients)
        placed = job.to_server(PTModel(model=model), id="persistor")
        settings.setdefault("persistor_id", placed["persistor_id"])
        job.to_server(FedHyper(num_clients=min_clients, num_rounds=num_rounds, **settings))
        runner = ScriptRunner(script=train_script, script_args=train_args, framework=FrameworkType.PYTORCH)
        job.to_clients(runner)
        super().__init__(job)
