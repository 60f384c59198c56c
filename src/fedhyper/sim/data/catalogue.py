"""The names of the built-in tasks and partitions; the code behind them is imported when one of them is asked for."""

from __future__ import annotations

from fedhyper.sim.keywords import Later
from fedhyper.sim.registry import register_partition, register_task

for _name, _model in (("digits", "logistic"), ("mnist", "cnn"), ("fmnist", "cnn"), ("cifar10", "resnet18")):
    register_task(_name, model=_model)(Later("fedhyper.sim.data.loaders", _name))
register_task("shakespeare", model="lstm", natural=True)(Later("fedhyper.sim.data.loaders", "shakespeare"))

for _name in ("iid", "dirichlet", "shards"):
    register_partition(_name)(Later("fedhyper.sim.data.splits", _name))
register_partition("natural", labelled=False)(Later("fedhyper.sim.data.splits", "natural"))
