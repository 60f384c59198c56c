"""The lock of what make setup installs: whole, by hash, and what constraints.txt says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .install.lock import PYTHONS, fits, hashes, pins

ROOT = Path(__file__).parents[1]


def needed(roots: list[str], python: str) -> set[str]:
    """The names of all packages that these need on ``python``, as far as they are installed here."""
    names, todo = set(), [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        name, extras = re.sub(r"[-_.]+", "-", one.name).lower(), frozenset(one.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        names.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for other in map(Requirement, requires):
            here = {"python_version": python, "python_full_version": f"{python}.0"}
            if other.marker is None or any(other.marker.evaluate({**here, "extra": extra}) for extra in ("", *extras)):
                todo.append(other)
    return names - {"fedhyper"}


def test_the_lock_has_everything_that_make_setup_installs() -> None:
    locked = pins((ROOT / "lock.txt").read_text()) | pins((ROOT / "lock-torch.txt").read_text())
    assert locked == pins((ROOT / "constraints.txt").read_text()), "run make lock"
    for python in PYTHONS:
        assert needed(["fedhyper[dev]", "hatchling", "editables"], python) <= set(locked)


def test_every_package_of_the_lock_has_its_hashes_and_the_makefile_asks_for_them() -> None:
    for file in ("lock.txt", "lock-torch.txt"):
        entries = re.split(r"^(?=\w)", re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.M), flags=re.M)[1:]
        assert all(re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry) for entry in entries)
        assert re.search(rf"--require-hashes .*-r {file}\n", (ROOT / "Makefile").read_text())
    rule = re.search(r"^\$\(READY\):.*\n(\t.*\n)+", (ROOT / "Makefile").read_text(), flags=re.M)
    assert rule is not None
    free = [line for line in rule[0].splitlines() if " install " in line and "--require-hashes" not in line]
    assert all("torch==" in line or line.endswith("--no-deps --no-build-isolation -e .") for line in free)


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """Nothing is fetched: all that pip looks at is what it finds here."""
    wheel = tmp_path / "nothing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "lock.txt").write_text(f"nothing==1.0 --hash=sha256:{'0' * 64}\n")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "-f", str(tmp_path), "--dry-run", "--no-deps"]
    command += ["--require-hashes", "-r", str(tmp_path / "lock.txt"), "--isolated"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


WHEELS = {
    "a-1.0-py3-none-any.whl": True,
    "a-1.0-py2.py3-none-any.whl": True,
    "a-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": True,
    "a-1.0-cp313-cp313-macosx_11_0_arm64.whl": True,
    "a-1.0-cp39-abi3-manylinux_2_28_aarch64.whl": True,
    "a-1.0-cp310-cp310-manylinux_2_28_x86_64.whl": False,
    "a-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl": False,
    "a-1.0-cp314-abi3-manylinux_2_28_x86_64.whl": False,
    "a-1.0-cp311-cp311-musllinux_1_2_x86_64.whl": False,
    "a-1.0-cp311-cp311-win_amd64.whl": False,
    "a-1.0-py2-none-any.whl": False,
}


@pytest.mark.parametrize(("wheel", "wanted"), WHEELS.items())
def test_which_wheels_are_locked(wheel: str, wanted: bool) -> None:
    assert fits(wheel) == wanted


def test_hashes_of_a_page() -> None:
    names = [
        "a-1.0-py3-none-any.whl",
        "a-1.0.1-py3-none-any.whl",
        "a-1.0.tar.gz",
        "a-2.0.tar.gz",
        "a-1.0-cp311-cp311-win32.whl",
    ]
    page = "".join(f'<a href="https://x/{n}#sha256={str(i) * 64}" data-x="">{n}</a><br/>' for i, n in enumerate(names))
    assert hashes(page, "1.0") == ["0" * 64]
    assert hashes(page, "2.0") == ["3" * 64]
    assert hashes(page, "3.0") == []
