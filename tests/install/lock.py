"""Writes ``lock.txt``: every pin of constraints.txt with the hashes of the files that may be installed for it.

    make lock                     after a change of constraints.txt; needs the standard library and PyPI

Hashes are those PyPI lists, of wheels for the Pythons, machines and systems below; a package without a wheel has its
source's. torch is in a file of its own, ``lock-torch.txt``: of two builds pip takes the one whose hash its index tells,
which is the one with CUDA, gigabytes of it, although the other is at hand. So that is fetched first, and then judged.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORM = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx.*_(x86_64|arm64|universal2)")
HEAD = """\
# What make setup installs, every file by its hash. Written by `make lock` from constraints.txt: change that.
# For Python 3.11 to 3.13 on Linux and macOS.
"""
# torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl of https://download.pytorch.org/whl/cpu, as it lay on the
# machine where all was tested. A build without CUDA for another Python is refused until its hash is here.
MORE = {"torch==2.13.0": ["6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"]}


def pins(text: str) -> dict[str, str]:
    """Name, as indexes spell it, and version of every pin."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, flags=re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def fits(wheel: str) -> bool:
    """Whether a wheel of this file name may be installed by anybody who is supported."""
    pythons, abi, platforms = wheel.removesuffix(".whl").split("-")[-3:]
    if not any(PLATFORM.fullmatch(platform) for platform in platforms.split(".")):
        return False
    ours = {"cp" + python.replace(".", "") for python in PYTHONS}
    for tag in pythons.split("."):
        if tag in ("py3", *ours) and abi in ("none", "abi3", tag):
            return True
        if abi == "abi3" and tag.startswith("cp3") and int(tag[3:]) <= 13:
            return True
    return False


def hashes(page: str, version: str) -> list[str]:
    """SHA-256 of the files of ``version`` on a page of the simple index: of its wheels, or of its source."""
    files = re.findall(r'<a href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>', page)
    wheels = [digest for digest, name in files if name.endswith(".whl") and name.split("-")[1] == version]
    fitting = [d for d, name in files if d in set(wheels) and fits(name)]
    sources = [digest for digest, name in files if name.endswith((f"-{version}.tar.gz", f"-{version}.zip"))]
    return sorted(fitting or sources)


def locked(pin: tuple[str, str]) -> str:
    """The lines of one package."""
    name, version = pin
    with urllib.request.urlopen(f"https://pypi.org/simple/{name}/", timeout=60) as answer:
        found = hashes(answer.read().decode(), version) + MORE.get(f"{name}=={version}", [])
    if not found:
        sys.exit(f"{name}=={version}: PyPI has no file for it")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n"


def main() -> None:
    """Write both files."""
    wanted = pins((ROOT / "constraints.txt").read_text())
    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(locked, sorted(wanted.items())))
    for file, own in (("lock.txt", False), ("lock-torch.txt", True)):
        some = [entry for entry in lines if entry.startswith("torch==") == own]
        (ROOT / file).write_text(HEAD + "".join(some))
        print(f"{file}: packages {len(some)}, files {sum(entry.count('--hash=') for entry in some)}")


if __name__ == "__main__":
    main()
