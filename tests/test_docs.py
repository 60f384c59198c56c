"""The Python in the README and in docs/ runs. The blocks of one file share a namespace, so a page reads like a session.
A ``text`` block right behind one is what it prints.

A block is left out only by the line ``<!-- not run: reason -->`` right before it; what is left out shows up as a skip.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]
FENCE = re.compile(r"^(?P<indent> *)```python *\n(?P<code>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"\s*^```text *\n(?P<text>.*?)^``` *$", re.MULTILINE | re.DOTALL)
END = "\x1e"  # is printed after each block
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->\s*$")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of Python, the line it starts on, why it is not run, if so, and what the page says that it prints."""

    line: int
    code: str
    not_run: str | None
    prints: str | None


def blocks(text: str) -> list[Block]:
    """All Python blocks of a page."""
    found = []
    for match in FENCE.finditer(text):
        above = NOT_RUN.search(text[: match.start()].rstrip("\n").rpartition("\n")[2])
        indent = match["indent"]
        code = "".join(line.removeprefix(indent) for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("code")) + 1
        below = PRINTS.match(text, match.end())
        found.append(Block(line, code, above["reason"] if above else None, below["text"] if below else None))
    return found


def program(page: str, text: str) -> str:
    """One script of the blocks that run; blank lines keep the page's line numbers for the traceback."""
    lines: list[str] = []
    for block in blocks(text):
        if block.not_run is None:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines() + [f"print({END!r}, end='')"]
    return f"exec(compile({chr(10).join(lines)!r}, {page!r}, 'exec'), {{'__name__': '__main__'}})"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    done = subprocess.run(
        # typer 0.20, which Flower pins, uses a name that click 8.5 deprecates
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:typer", "-c", program(page.name, text)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}\n{done.stderr}"
    for block, printed in printing(text, done.stdout):
        assert block.prints == printed, f"{page.name}: write, below the block of line {block.line}:\n{printed}"


def printing(text: str, output: str) -> list[tuple[Block, str]]:
    """Each block of which a page says what it prints, with what it printed."""
    ran = [block for block in blocks(text) if block.not_run is None]
    return [(block, out) for block, out in zip(ran, output.split(END), strict=False) if block.prints is not None]


LEFT_OUT = [(page, block) for page in PAGES for block in blocks(page.read_text()) if block.not_run]


@pytest.mark.parametrize(("page", "block"), LEFT_OUT, ids=lambda x: x.name if isinstance(x, Path) else f"line {x.line}")
def test_blocks_left_out_still_parse(page: Path, block: Block) -> None:
    compile(block.code, page.name, "exec")
    pytest.skip(f"{page.name}, line {block.line}: {block.not_run}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    targets = [
        match["target"] for match in LINK.finditer(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S))
    ]
    inside = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in inside if target and not (page.parent / target).exists()] == []


def _places(page: Path) -> set[str]:
    """What may stand behind # in a link to a page, on GitHub and on the site: headings; <a id> is GitHub's alone."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    targets = [match["target"].split("#") for match in LINK.finditer(text) if "#" in match["target"]]
    inside = [
        (page.parent / name if name else page, place) for name, place in targets if not re.match(r"[a-z]+:", name)
    ]
    lost = [f"{file.name}#{place}" for file, place in inside if file.suffix == ".md" and place not in _places(file)]
    assert lost == []


def _output(script: str, cwd: Path) -> str:
    path = str(ROOT / script)
    done = subprocess.run([sys.executable, path], cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_page_can_be_reached_from_the_sites_index() -> None:
    """make docs would say so, too, but is not part of make test."""
    docs = ROOT / "docs"
    named = re.findall(
        r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```", (docs / "index.md").read_text("utf-8"), re.M | re.S
    )
    listed = {path for name in "".join(named).split() for path in docs.glob(f"{name}.md")}
    assert sorted(path.name for path in {*docs.glob("**/*.md")} - listed - {docs / "index.md"}) == []


def test_the_numpy_example_shows_what_it_promises(tmp_path: Path) -> None:
    rows = [line.split() for line in _output("examples/numpy_in_ten_lines.py", tmp_path).splitlines()[1:]]
    fedavg = {row[0]: row[1] for row in rows}
    # 1.00 without fedhyper.guard, 1.01 with its first rule: at the optimum honest clients pull against each other, too
    assert (fedavg["0.0001"] > "9", fedavg["0.01"], fedavg["1"]) == (True, "1.05", "diverged")
    assert all(float(row[-1]) < 1.5 for row in rows), "auto ends near the best fit from every rate"


@pytest.mark.slow
def test_the_torch_example_runs(tmp_path: Path) -> None:
    lines = _output("examples/torch_client.py", tmp_path).splitlines()
    last = {line.split()[0]: float(line.split("accuracy")[1].split("%")[0]) for line in lines}
    assert last["HyperSGD"] > last["SGD"] > 50


def test_the_picture_is_what_its_script_draws() -> None:
    drawing = runpy.run_path(str(ROOT / "docs/img/make_idea.py"))["drawing"]()
    assert (ROOT / "docs/img/idea.svg").read_text(encoding="utf-8") == drawing


def test_the_pictures_of_the_concepts_are_what_their_script_draws() -> None:
    drawings = runpy.run_path(str(ROOT / "docs/img/make_concepts.py"))["DRAWINGS"]
    assert {name: (ROOT / "docs/img" / name).read_text(encoding="utf-8") for name in drawings} == {
        name: draw() for name, draw in drawings.items()
    }


API = runpy.run_path(str(ROOT / "docs/make_api.py"))


def test_the_page_of_the_api_is_what_its_script_writes() -> None:
    command = "python docs/make_api.py docs/api.md"
    assert (ROOT / "docs/api.md").read_text(encoding="utf-8") == API["page"](), f"run: {command}"


def test_every_argument_of_the_api_is_explained() -> None:
    assert API["undocumented"]() == []


def test_the_search_for_what_is_not_explained_can_fail() -> None:
    def half(told: int, untold: int) -> None:
        """One is told.

        told  what it does
        """

    assert [bool(row.help) for row in API["arguments"](half)] == [True, False]


PAGE = """
# A page
```python
x = 1
```
```sh
exit 1
```
<!-- not run: needs a cluster -->
```python
raise SystemExit(9)
```
```python
assert x == 1
```
"""


def test_the_reader_of_pages() -> None:
    assert [(b.line, b.not_run) for b in blocks(PAGE)] == [(4, None), (11, "needs a cluster"), (14, None)]
    for text, good in ((PAGE, True), (PAGE.replace("x == 1", "x == 2"), False)):
        done = subprocess.run(
            [sys.executable, "-c", program("page.md", text)], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == good, done.stderr
    assert 'File "page.md", line 14' in done.stderr


def test_the_reader_of_what_a_page_prints() -> None:
    text = PAGE.replace("assert x == 1\n```\n", "print(x)\n```\n\n```text\n2\n```\n")
    done = subprocess.run([sys.executable, "-c", program("page.md", text)], capture_output=True, text=True, check=True)
    assert [(block.line, block.prints, out) for block, out in printing(text, done.stdout)] == [(14, "2\n", "1\n")]
