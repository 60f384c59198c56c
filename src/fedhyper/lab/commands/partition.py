"""``fedhyper partition``: who holds what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedhyper.lab.commands.options import Experiment, Imports, Json, Overrides


def partition(
    experiment: Experiment,
    overrides: Overrides = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw it: .png, .svg or .pdf")] = None,
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """Who holds what: a table of the clients, and a picture.

    fedhyper partition fmnist partition.concentration=0.1 --figure partition.png
    """
    from fedhyper.lab.config.model import load_config
    from fedhyper.lab.plugins import import_modules
    from fedhyper.lab.results.partition_table import print_partition
    from fedhyper.lab.running.build import make_partition
    from fedhyper.lab.starters import experiment_file

    import_modules(imports or ())
    config = load_config(experiment_file(experiment), overrides or (), unread={"clients_per_round": 1, "privacy": None})
    _, split = make_partition(config)
    record = split.to_json()
    if as_json:
        print(json.dumps(record))
    else:
        print_partition(config, record)
    if figure is not None:
        from fedhyper.lab.results.charts.chart import save
        from fedhyper.lab.results.charts.partition import partition_chart

        save(partition_chart(record), figure, title=f"{config.task}: who holds what")
        if not as_json:
            print(f"picture: {figure}")
