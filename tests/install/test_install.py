"""Each extra alone, in a new environment, from the package index: what a person gets who types ``pip install``.

Run by ``make test-install``; it ends with a table of what was installed where and what ran (conftest.py). torch is the
only pin of the cells without constraints: the newest of everything else must work. An interpreter that is not on this
machine, or for which there is no torch, is a cell that says so.

torch comes first and once for each interpreter, into a directory that the cells see by a .pth file: it is the same in
all of them, and where it brings CUDA along that is gigabytes.

An index may be slow, and a machine busy: every step has its own time (``MINUTES``), pip tries three times, and a cell
that ends early says in the table at which step.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.install, pytest.mark.timeout(4 * 3600)]  # of a step that hangs its own time tells, and sooner
MINUTES = 45  # for a step: gigabytes at 1 MB/s, or the suites at a tenth of a core
ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
PYTHONS = ("3.11", "3.12", "3.13")
WITH_TORCH = ("sim", "sim,report", "all")
EXTRAS = ("", "dp", "report", "flower", *WITH_TORCH)
# Layer 1, the report, and of Flower all but what trains networks for minutes; the whole suite runs on 3.11 (make test)
SUITES = (
    *("arrays", "auto", "checkpoint", "guard", "laws", "loop", "plans", "report", "server_object", "settings"),
    *("theory", "trajectories", "flower_client", "flower_gram", "flower_last_good", "flower_nesting"),
    *("flower_replies", "flower_resume", "flower_run_log", "flower_strategy"),
)
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis")
# Demo and report of the simulator, tables of the report, an app for Flower: what each extra is for.
SERVER = (
    "import fedhyper; s = fedhyper.Server([1.0, 2.0]); print(s.local_lr)\n"
    "try:\n    from fedhyper.client import HyperSGD\nexcept ModuleNotFoundError as e:\n    print(e)"
)
# Both accountants, at the same orders
OPINIONS = (
    "import dp_accounting as dp; from fedhyper.privacy import ORDERS, Privacy\n"
    "second = dp.rdp.RdpAccountant(orders=list(ORDERS))\n"
    "second.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.3)), 50)\n"
    "assert abs(second.get_epsilon(1e-5) / Privacy(noise=1.3).epsilon(50, 0.1) - 1) < 1e-9"
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, and the tools that made and judged them."""
    home = tmp_path_factory.mktemp("dist")
    tools = str(home / "tools" / "bin" / "python")
    _run([sys.executable, "-m", "venv", str(home / "tools")])
    _fetch([tools, "-m", "pip", "install", "-q", "-U", "pip", "build", "twine", "hatchling"])
    _run([tools, "-m", "build", "--no-isolation", "--outdir", str(home), str(ROOT)])
    _run([tools, "-m", "twine", "check", "--strict", *map(str, home.glob("fedhyper-*"))])
    return home


@pytest.fixture(scope="module")
def run_to_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made by the environment that runs the tests."""
    out = tmp_path_factory.mktemp("runs") / "one"
    _run([sys.executable, "-m", "fedhyper", "run", "digits", "rounds=2", "-q", "--no-report", "--out", str(out)])
    return out


def _do(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    inside = () if command[0] == sys.executable else ("PYTHONPATH", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in inside}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60 * MINUTES)


def _run(command: list[str], cwd: Path | None = None, code: int = 0) -> str:
    done = _do(command, cwd)
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def _fetch(command: list[str]) -> None:
    """A command of pip, up to three times: what it has got stays in its cache. An index without the file is final."""
    for wait in (5, 30, 0):
        done = _do(command)
        if done.returncode == 0:
            return
        if "No matching distribution" in done.stderr or "ResolutionImpossible" in done.stderr:
            break
        time.sleep(wait)
    raise LookupError(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _pip(dist: Path, venv: Path, *arguments: str) -> list[str]:
    """A command of pip for ``venv``, which has none of its own: bringing one along takes longer than most extras."""
    tools = str(dist / "tools" / "bin" / "python")
    return [tools, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check", *arguments]


@pytest.fixture(scope="module")
def torches(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path | None]:
    """A directory with torch for an interpreter, made when it is first asked for; None: the index has none for it.

    ``FEDHYPER_TORCHES=DIR`` keeps them there, for the next time.
    """
    kept = os.environ.get("FEDHYPER_TORCHES")
    home = Path(kept) if kept else tmp_path_factory.mktemp("torches")

    @functools.cache
    def install(python: str) -> Path | None:
        place = home / f"{Path(python).name}-{TORCH}"
        if not (place / "torch").is_dir():
            venv = home / "venv"
            _run([python, "-m", "venv", "--clear", "--without-pip", str(venv)])
            half = home / "half"
            shutil.rmtree(half, ignore_errors=True)
            try:
                _fetch(_pip(dist, venv, "install", "-q", "--no-compile", "--target", str(half), TORCH))
            except LookupError as none:
                if f"No matching distribution found for {TORCH}" in str(none):
                    return None
                raise
            half.rename(place)
        return place

    return install


def _interpreter(version: str) -> str | None:
    """An interpreter of this version that starts: the one under test, one on PATH, or pyenv's."""
    beside = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for path in (shutil.which(f"python{version}"), *map(str, beside)):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


# constraints.txt is what was tested together on 3.11; oldest: the first Flower that [flower] allows
CELLS = [(version, "newest", extra) for version in PYTHONS for extra in EXTRAS]
CELLS += [("3.11", "oldest", "all"), *(("3.11", "pinned", extra) for extra in EXTRAS)]
PINS = {"newest": [], "oldest": ["flwr==1.38.0"], "pinned": ["-c", str(ROOT / "constraints.txt")]}


@pytest.mark.parametrize(("version", "constrained", "extra"), CELLS)
def test_an_extra_installs_and_works(
    version: str,
    constrained: str,
    extra: str,
    matrix: dict[tuple[str, str, str], str],
    dist: Path,
    torches: Callable[[str], Path | None],
    run_to_report: Path,
    tmp_path: Path,
) -> None:
    cell = (version, constrained, extra)
    started = time.monotonic()

    def at(step: str) -> None:
        """What the table says if the cell ends here."""
        matrix[cell] = f"FAILED at {step}, after {time.monotonic() - started:.0f} s"

    at("venv")
    python = _interpreter(version)
    if python is None:
        matrix[cell] = f"skipped: no Python {version} here"
        pytest.skip(matrix[cell])
    venv = tmp_path / "venv"
    _run([python, "-m", "venv", "--without-pip", str(venv)])
    (wheel,) = dist.glob("*.whl")
    if extra in WITH_TORCH:
        at(TORCH)
        torch = torches(python)
        if torch is None:
            matrix[cell] = f"skipped: no {TORCH} for Python {version} in this index"
            pytest.skip(matrix[cell])
        (venv / "lib" / f"python{version}" / "site-packages" / "torch.pth").write_text(f"{torch}\n")
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    at("pip install")
    _fetch(_pip(dist, venv, "install", "-q", "--no-compile", *PINS[constrained], wanted))
    at("use")
    worked = _use(str(venv / "bin" / "python"), extra, run_to_report, tmp_path)
    if extra == "all" and constrained != "pinned":  # make test has these pins
        at("suites")
        _fetch(_pip(dist, venv, "install", "-q", "--no-compile", *TEST_TOOLS))
        worked.append(_suites(str(venv / "bin" / "python")))
    versions = _versions(_pip(dist, venv, "list", "--format", "json"))
    matrix[cell] = f"{', '.join(worked)}; {versions}; {time.monotonic() - started:.0f} s"
    shutil.rmtree(tmp_path / "venv")


def _use(python: str, extra: str, run: Path, cwd: Path) -> list[str]:
    """What the extra is for; the names of what worked."""
    fedhyper = [str(Path(python).parent / "fedhyper")]
    worked = ["import"]
    said = _run([python, "-c", SERVER], cwd)
    if extra not in WITH_TORCH:
        assert "needs torch, which is not installed; pip install '.[sim]' in the clone" in said
    if extra == "dp":
        _run([python, "-c", OPINIONS], cwd)
        worked.append("two opinions on epsilon")
    if extra in ("", "dp"):
        assert "pip install 'fedhyper[sim]'" in _run([*fedhyper, "--help"], cwd, code=2)
        return worked
    assert "Usage" in _run([*fedhyper, "--help"], cwd)
    assert "did you mean 'run'?" in _run([*fedhyper, "rn"], cwd, code=2).lower()
    _run([*fedhyper, "flower", "new", "app"], cwd)
    for command in (fedhyper, [python, "-m", "fedhyper"]):
        assert "fedhyper,fedhyper,1," in _run([*command, "report", str(run), "--table", "csv"], cwd)
    worked += ["flower new", "report --table"]
    if extra in WITH_TORCH:
        _run([*fedhyper, "demo"], cwd)
        worked.append("demo")
        _run([*fedhyper, "run", "digits", "rounds=2", "--quiet"], cwd)
    if "report" in extra or extra == "all":
        _run([*fedhyper, "report", str(run), "-o", "page.html"], cwd)
        assert "<html" in (cwd / "page.html").read_text(encoding="utf-8")
        worked.append("report")
    else:
        assert "pip install 'fedhyper[report]'" in _run([*fedhyper, "report", str(run)], cwd, code=2)
    if extra in ("flower", "all"):
        _run(
            [
                python,
                "-c",
                "from fedhyper.flower import FedHyper; from flwr.serverapp.strategy import FedAvg; FedHyper(FedAvg())",
            ]
        )
        worked.append("strategy")
    return worked


def _suites(python: str) -> str:
    """What pytest says of ``SUITES`` against what is installed. Warnings of newer libraries are theirs."""
    files = [str(ROOT / "tests" / f"test_{suite}.py") for suite in SUITES]
    options = ["-m", "not slow and not flower", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "-x"]
    said = _run([python, "-m", "pytest", *options, *files], ROOT)
    return re.findall(r"\d+ passed", said)[-1]


def _versions(command: list[str]) -> str:
    listed = json.loads(next(line for line in _run(command).splitlines() if line.startswith("[")))
    told = ("typer", "click", "rich", "pydantic", "altair", "flwr", "torch", "numpy")
    return ", ".join(f"{one['name']} {one['version']}" for one in listed if one["name"] in told)


def test_what_is_in_wheel_and_sdist(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "fedhyper"
    ours = {
        f"fedhyper/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.suffix in (".py", ".toml", ".css", ".js")
    }
    assert ours <= inside, sorted(ours - inside)
    assert "fedhyper/py.typed" in inside
    assert not [name for name in inside if not name.startswith(("fedhyper/", "fedhyper-"))]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "hatch_build.py", "tests/test_laws.py"} <= names
    assert "src/fedhyper/lab/experiments/digits.toml" in names
    assert not [name for name in names if re.match(r"(runs|build|dist|\.venv|\.issues)/", name)]


def test_links_of_the_readme_work_on_pypi(dist: Path) -> None:
    absolute = (  # where hatchling is
        "import runpy, sys; absolute = runpy.run_path(sys.argv[1])['absolute']\n"
        "print(absolute(open(sys.argv[2], encoding='utf-8').read(), 'https://host/owner/name', 'v1'))"
    )
    tools = str(dist / "tools" / "bin" / "python")
    text = _run([tools, "-c", absolute, str(ROOT / "hatch_build.py"), str(ROOT / "README.md")])
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", outside)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "![" not in outside or "https://host/owner/name/raw/v1/docs/img/" in outside
