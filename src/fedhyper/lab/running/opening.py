"""How a run begins: in a directory that is free for it, or where an earlier part of the same run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedhyper.errors import CheckpointRefused, UserError
from fedhyper.lab.config.identity import config_hash, differences
from fedhyper.lab.config.model import Config
from fedhyper.lab.running.build import environment
from fedhyper.lab.running.directory import ANEW, RunDirectory, too_long
from fedhyper.lab.running.progress import Progress

if TYPE_CHECKING:
    from fedhyper.sim.simulation import Simulation


class AnotherConfig(CheckpointRefused):
    """The run in a directory is not of this config; whoever read the config from a file says which."""


def known_config(files: RunDirectory, config: Config, resume: bool, engine: str) -> Config | None:
    """The config of the run that is there; None when this one is new. Refused unless ``config`` may continue it."""
    known = files.config()
    if known is None:
        return None
    summary = files.read_json("summary.json") or {}
    if not resume:
        if summary.get("status") == "finished":
            cure = f"continue it with --resume and more rounds than {known.rounds}"
        else:
            cure = "continue it with --resume"
        state = summary.get("status", "unfinished")
        raise UserError(f"{files.path} holds a run ({state}); {cure}, or choose another --out")
    differing = differences(config, known)
    if differing:
        raise AnotherConfig(
            f"{files.path} holds a run of another config: {', '.join(differing)}; "
            f"use its values, choose another --out, or {ANEW}"
        )
    began = (files.read_json("env.json") or {}).get("engine", "simulator")
    if began != engine and config.engine != "sequential":  # which has the bits of Flower
        raise CheckpointRefused(
            f"{files.path} holds a run of --engine {began}, whose bits are not those of --engine {engine}; "
            f"go on with --engine {began}, choose another --out, or {ANEW}"
        )
    return known


def open_run(
    files: RunDirectory, config: Config, sim: Simulation, progress: Progress, known: Config | None, engine: str
) -> list[str]:
    """Bring ``sim`` and ``progress`` to the last checkpoint, if there is one; what a person should know comes back."""
    from fedhyper.sim.data.tasks import digests

    partition = sim.partition.to_json() | {"data": digests(sim.task)}
    env = environment() | {"engine": engine, "begun_with_rounds": config.rounds}
    loaded = files.load_checkpoint() if known else None
    notes: list[str] = []
    if loaded and loaded[1]["round"] > config.rounds:
        raise too_long(files.path, loaded[1]["round"], config.rounds)
    if known is None:
        files.write_config(config)
        files.write_json("partition.json", partition)
    else:
        again = [] if loaded else _check_restart(files, known)
        begun = (files.read_json("env.json") or {}).get("begun_with_rounds", known.rounds)
        notes += _check_world(files, partition, env | {"begun_with_rounds": begun}) + again
    if loaded is None:
        files.write_json("env.json", env)
        files.open_metrics(keep=0)
    else:
        tensors, values, refused = loaded
        _restore(files, config, sim, tensors, values)
        for record in files.open_metrics(keep=values["metrics_bytes"], sha256=values.get("metrics_sha256")):
            progress.add(record)
        if progress.rounds != sim.round:
            raise CheckpointRefused(
                f"{files.path / 'metrics.jsonl'} ends with round {progress.rounds}, "
                f"its checkpoint with round {sim.round}; one of them is not of this run: put it back, or {ANEW}"
            )
        notes += refused
        if _other_start(sim, begun):
            progress.begun_with_rounds = begun
            notes.append(
                f"begun with rounds = {begun}, for which it chose its rate: its bits are not those of a run of "
                f"rounds = {config.rounds} from the start"
            )
    if known and known.values() != config.values():  # not before: a run that is refused stays what it was
        files.write_config(config)
    return notes


def _other_start(sim: Simulation, begun: int) -> bool:
    """Whether a start that knew of ``begun`` rounds may have chosen another rate than one that knows of all."""
    ladder = sim.method.plan.ladder
    if ladder is None or sim.privacy is not None:  # whose start is votes alone, however long the run
        return False
    return begun != sim.rounds and min(begun, sim.rounds) <= 2 * ladder.ahead  # the longest race


def _check_restart(files: RunDirectory, known: Config) -> list[str]:
    """A run without a checkpoint begins again; refused if it had one, for its rounds would be cut off."""
    recorded = files.recorded()
    # The first checkpoint follows the round it is due in, and every end but a kill writes one.
    status = (files.read_json("summary.json") or {}).get("status", "running")
    if recorded and (status != "running" or recorded > (known.checkpoint_every or 1)):
        raise CheckpointRefused(
            f"{files.path} has {recorded} rounds on record and no checkpoint to go on from; "
            f"put its checkpoint directory back, choose another --out, or {ANEW}"
        )
    return [f"{files.path} was stopped before its first checkpoint: it begins again"]


def _check_world(files: RunDirectory, partition: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The data must be those of the first part; other library versions are worth a word."""
    saved = files.read_json("partition.json")
    if saved is None:
        files.write_json("partition.json", partition)
    elif saved.get("sha256") != partition["sha256"]:
        raise CheckpointRefused(
            f"{files.path / 'partition.json'}: the data or their split have changed since the run began; "
            f"put the old data back, choose another --out, or {ANEW}"
        )
    elif "data" not in saved:  # a run of before they were written down
        files.write_json("partition.json", partition)
    elif other := _changed(saved["data"], partition["data"]):
        raise CheckpointRefused(
            f"{files.path / 'partition.json'}: {', '.join(other)} of the data changed since the run began; "
            f"put the old files back, choose another --out, or {ANEW}"
        )
    env = files.read_json("env.json")
    if env is None:
        files.write_json("env.json", now)
        return []
    changed = [key for key in ("fedhyper", "python", "torch", "numpy", "machine") if env.get(key) != now[key]]
    if not changed:
        return []
    return [f"continued with another {', '.join(changed)}: the bits may differ from one long run"]


def _changed(before: Any, now: dict[str, str]) -> list[str]:
    """Whose digest is another one."""
    known = before if isinstance(before, dict) else {}
    return [name for name, digest in now.items() if known.get(name) != digest]


def _restore(
    files: RunDirectory, config: Config, sim: Simulation, tensors: dict[str, Any], values: dict[str, Any]
) -> None:
    import torch

    place = files.path / "checkpoint"
    if values.get("config_hash") != config_hash(config):
        raise CheckpointRefused(f"{place}: made by a run of another config; put its own back, or {ANEW}")
    try:
        sim.restore({name: torch.from_numpy(array) for name, array in tensors.items()}, values["state"])
        restored = sim.round
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        if sizes := _other_sizes(tensors, sim.state()[0]):
            raise CheckpointRefused(
                f"{place}: the model had {sizes[0]:,} weights when this run began, and has {sizes[1]:,} now; "
                f"make the plug-in what it was, choose another --out, or {ANEW}"
            ) from error
        what = str(error) if type(error) is ValueError else type(error).__name__
        raise CheckpointRefused(f"{place}: not a state of this simulation ({what}); {ANEW}") from error
    if restored != values["round"]:
        raise CheckpointRefused(f"{place}: its state is not of the round it says; {ANEW}")


def _other_sizes(before: dict[str, Any], now: dict[str, Any]) -> tuple[int, int] | None:
    """How many numbers the first array has that is of another shape, then and now; None where there is none."""
    for name, array in now.items():
        if name in before and tuple(before[name].shape) != tuple(array.shape):
            return before[name].size, array.numel()
    return None
