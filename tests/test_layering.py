"""House rules that matter: imports go down, layer 1 needs nothing, no code is loaded from data, files stay short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedhyper

PACKAGE = Path(__file__).parents[1] / "src" / "fedhyper"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module imports its own layer and those below; sim, flower and nvflare, side by side on 3, not each other. A new
# module at the top level has to be given its layer here.
LAYERS = {
    "__init__": 1,
    "__main__": 4,
    "arrays": 1,
    "automatic": 1,
    "baselines": 1,
    "errors": 1,
    "fair": 1,
    "guard": 1,
    "plan": 1,
    "privacy": 1,
    "schedulers": 1,
    "settings": 1,
    "optimizers": 1,
    "averages": 1,
    "loop": 1,
    "server": 1,
    "theory": 1,
    "client": 2,
    "storage": 2,
    "torch": 2,
    "sim": 3,
    "flower": 3,
    "nvflare": 3,
    "lab": 4,
}
RULES = ("schedulers", "baselines", "optimizers", "guard", "theory", "arrays")  # the rules; plans are made of them


def unit(path: Path) -> str:
    """The module or subpackage right under fedhyper that ``path`` belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every module that ``path`` imports, anywhere in the file, by its full name."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _below(path: Path) -> list[str]:
    """The units of this package that ``path`` imports."""
    inside = [name.split(".") for name in imports(path) if name.split(".")[0] == "fedhyper"]
    return [parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__" for parts in inside]


def violations(path: Path) -> list[str]:
    """Imports of ``path`` that go up, or sideways between sim and flower."""
    here = unit(path)
    return [
        f"{here} imports {there}"
        for there in _below(path)
        if LAYERS[there] > LAYERS[here] or (LAYERS[here] == 3 == LAYERS[there] and here != there)
    ]


def ids(paths: list[Path]) -> list[str]:
    """Readable names of parametrized files."""
    return [str(path.relative_to(PACKAGE)) for path in paths]


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_imports_go_down(path: Path) -> None:
    assert unit(path) in LAYERS, f"give {unit(path)} a layer in {Path(__file__).name}"
    assert violations(path) == []


@pytest.mark.parametrize(
    ("place", "line", "allowed"),
    [
        ("guard.py", "from fedhyper import client", False),
        ("guard.py", "import fedhyper.sim.rng", False),
        ("client/vectors.py", "from fedhyper.arrays import inner", True),
        ("client/vectors.py", "from fedhyper.sim.rng import generator", False),
        ("sim/x.py", "from fedhyper.sim.rng import generator", True),
        ("sim/x.py", "from fedhyper.flower import FedHyper", False),
        ("flower/x.py", "import fedhyper.sim", False),
        ("flower/x.py", "def f():\n    from fedhyper.lab.cli import main", False),
        ("lab/x.py", "from fedhyper.sim import rng\nfrom fedhyper import flower", True),
    ],
)
def test_the_layering_test_can_fail(
    place: str, line: str, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(line)
    assert (violations(path) == []) == allowed


LAYER_1 = [path for path in FILES if LAYERS.get(unit(path)) == 1]


@pytest.mark.parametrize("path", LAYER_1, ids=ids(LAYER_1))
def test_layer_1_needs_the_standard_library_only(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert tops <= {*sys.stdlib_module_names, "fedhyper"}


FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "pandas.read_pickle"}


def loaders(tree: ast.AST) -> list[str]:
    """What in ``tree`` could run code that came as data."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or ""] if (node.module or "").split(".")[0] in FORBIDDEN_MODULES else []
            found += [f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in FORBIDDEN_CALLS]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
            found.append(ast.unparse(node.func))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found += [] if isinstance(node.value, ast.Constant) and node.value.value is False else ["allow_pickle"]
    return found


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_no_code_is_loaded_from_data(path: Path) -> None:
    assert loaders(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "x = eval('1')",
        "import torch; torch.load('f')",
        "from torch import load",
        "import numpy as np; np.load('f', allow_pickle=True)",
        "import marshal",
    ],
)
def test_the_search_for_loaders_can_fail(line: str) -> None:
    assert loaders(ast.parse(line)) != []


def _lines(*names: str) -> int:
    return sum(len((PACKAGE / f"{name}.py").read_text().splitlines()) for name in names)


def test_layer_1_stays_readable_at_a_sitting() -> None:
    assert _lines("schedulers") <= 250
    assert _lines(*RULES) <= 800


def _public(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in body if isinstance(node, named) and not node.name.startswith("_")]


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_every_public_name_says_what_it_is(path: Path) -> None:
    names = _public(ast.parse(path.read_text()).body)
    if LAYERS[unit(path)] <= 2:  # what others build on: the methods, too
        names += [method for node in names if isinstance(node, ast.ClassDef) for method in _public(node.body)]
    assert [f"{node.name}, line {node.lineno}" for node in names if not ast.get_docstring(node)] == []


def test_import_fedhyper_loads_neither_torch_nor_numpy() -> None:
    script = "import sys, fedhyper; print(sorted({'torch', 'numpy', 'flwr', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_exported_exists() -> None:
    assert len(fedhyper.__all__) == len(set(fedhyper.__all__))
    assert all(hasattr(fedhyper, name) for name in fedhyper.__all__)


# The distribution that brings a module under another name.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "mlflow": "mlflow-skinny"}


def declared() -> dict[str, set[str]]:
    """The distributions that each extra of pyproject.toml names."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return {name: {re.split(r"[\[<>=!~ ;]", line)[0] for line in lines} for name, lines in extras.items()}


def undeclared(path: Path) -> set[str]:
    """Modules that ``path`` imports and that come neither with Python nor with an extra a user can ask for."""
    known = {name for extra, names in declared().items() if extra not in ("all", "dev") for name in names}
    tops = {name.split(".")[0] for name in imports(path)} - {*sys.stdlib_module_names, "fedhyper"}
    return {top for top in tops if DISTRIBUTIONS.get(top, top) not in known}


IMPORTERS = [path for path in FILES if "flower_app" not in path.parts]  # a template has dependencies of its own


@pytest.mark.parametrize("path", IMPORTERS, ids=ids(IMPORTERS))
def test_imports_are_declared(path: Path) -> None:
    assert undeclared(path) == set()


def test_the_search_for_undeclared_imports_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import json, torch, click\nfrom sklearn import datasets\ndef f():\n    import yaml")
    assert undeclared(path) == {"click", "yaml"}


# The shape of the house -----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
MEDIAN, FOLDER, SHARED = 150, 14, 12


def test_the_drawn_import_graph_has_no_edge_that_goes_up() -> None:
    command = [sys.executable, str(ROOT / "docs" / "import_graph.py"), "--edges"]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    edges = [tuple(line.replace(" -> ", " ").split()) for line in drawn]
    assert ("sim", "3", "client", "2") in edges  # it draws what is there
    assert [line for line, (_, high, _, low) in zip(drawn, edges, strict=True) if int(low) > int(high)] == []
    assert not {("sim", "flower"), ("flower", "sim")} & {(here, there) for here, _, there, _ in edges}


def test_the_picture_in_the_architecture_is_the_one_that_the_command_draws() -> None:
    command = [sys.executable, str(ROOT / "docs" / "import_graph.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert drawn in page, "run: python docs/import_graph.py docs/architecture.md"


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    full = sorted(count for count in lengths.values() if count)  # an empty __init__ makes nothing shorter
    longest = sorted(lengths.items(), key=lambda item: -item[1])[:20]
    told = "".join(f"\n  {count:4} {path.relative_to(PACKAGE)}" for path, count in longest)
    assert full[len(full) // 2] <= MEDIAN, f"half of the files have more than {MEDIAN} lines; the longest:{told}"


def test_folders_stay_small() -> None:
    folders = {path.parent for path in FILES}
    counts = {str(folder.relative_to(PACKAGE.parent)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > FOLDER} == {}


def _code(path: Path) -> list[tuple[int, str]]:
    """The lines that are code, with their numbers: no blank ones, no comments, no docstrings, no imports."""
    tree = ast.parse(path.read_text())
    left_out: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(path.read_text().splitlines(), start=1)]
    return [(n, line) for n, line in lines if line and not line.startswith("#") and n not in left_out]


def twice(paths: list[Path], size: int = SHARED) -> list[str]:
    """Where ``size`` lines of code in a row stand in two places; one line for each pair of places."""
    seen: dict[tuple[str, ...], tuple[Path, int, int]] = {}
    found, inside = [], set()
    for path in paths:
        lines = _code(path)
        for start in range(len(lines) - size + 1):
            block = tuple(text for _, text in lines[start : start + size])
            other = seen.setdefault(block, (path, start, lines[start][0]))
            if other[:2] == (path, start):
                continue
            if (path, start - 1, other[0], other[1] - 1) not in inside:  # else the same pair, a line further on
                found.append(f"{path.name}:{lines[start][0]} and {other[0].name}:{other[2]}")
            inside.add((path, start, other[0], other[1]))
    return found


def test_no_block_of_code_stands_twice() -> None:
    assert twice(FILES) == []


def test_the_search_for_blocks_that_stand_twice_can_fail(tmp_path: Path) -> None:
    block = [f"a{i} = {i}" for i in range(SHARED)]
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("\n".join([*block, "end = 1"]))
    two.write_text("\n".join(["b = 2", *block[:5], "# a comment", "", *block[5:]]))
    assert twice([one, two]) == ["two.py:2 and one.py:1"]
    two.write_text("\n".join([*block[: SHARED - 1], "c = 3"]))
    assert twice([one, two]) == []
