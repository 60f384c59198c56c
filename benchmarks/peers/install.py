"""Give each peer an environment of its own under build/peers: python benchmarks/peers/install.py [NAME...]

torch is pinned first: without that, a framework's own requirement pulls gigabytes of CUDA libraries. Flower runs in
fedhyper's environment (the extra ``flower``).
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

BUILD = Path(__file__).parent.parent.parent / "build" / "peers"
TORCH = ["torch==2.13.0", "numpy"]
# Each line is one pip install. FedLab's own requirements include torchvision, which it uses for datasets that are not
# needed here and which does not load beside a CPU build of torch: it is installed without them, and they by name.
PEERS: dict[str, list[list[str]]] = {
    "pfl": [TORCH, ["pfl[pytorch]==0.6.0", "torch==2.13.0"]],
    "fedlab": [
        [*TORCH, "pandas", "scikit-learn", "nvidia-ml-py", "tqdm", "munch", "pillow", "setuptools", "wheel"],
        ["--no-deps", "fedlab==1.3.0"],
    ],
    "fedjax": [["fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"]],
}


def main() -> None:
    """Install those named, or all."""
    for name in sys.argv[1:] or PEERS:
        print(f"{name}: {BUILD / name}", flush=True)
        venv.create(BUILD / name, with_pip=True)
        for packages in PEERS[name]:
            subprocess.run([str(BUILD / name / "bin" / "pip"), "install", "--quiet", *packages], check=True)


if __name__ == "__main__":
    main()
