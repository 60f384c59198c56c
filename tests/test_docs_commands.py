"""The commands in the shell blocks of README and docs/ run, each page a session in a directory of its own.

Made small: one round of a few clients, on the digits inside the package; what would train for hours is only planned
(``--no-run``). Elsewhere: demo (test_cli.py), extend.md (test_extend.py), ``flwr`` (make test-flower), pip (make
test-install).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedhyper.lab.cli import main

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("docs/extend.md", "docs/report.md")  # the latter's are forms, runs/…
SMALL = {"rounds": "1", "task": "digits", "model": "logistic", "clients": "4", "clients_per_round": "2"}
TRAINS = [f"{key}={value}" for key, value in SMALL.items()] + ["--quiet", "--no-report"]
ADDED = {"run": TRAINS, "sweep": TRAINS, "partition": ["task=digits"], "reproduce": ["--no-run"]}


def small(words: list[str]) -> list[str]:
    """A command with little to compute: the first seed, a tracker that is installed (mlflow: make test-engines)."""
    kept = [re.sub(r"^seed=(\d+)\.\..*", r"seed=\1", word) for word in words if word.split("=")[0] not in SMALL]
    return ["tensorboard" if word == "mlflow" else word for word in kept] + ADDED.get(words[0], [])


def commands(text: str) -> list[list[str]]:
    """The words of every line ``fedhyper …`` in a page's shell blocks, without ``fedhyper``."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S):
        lines = block.replace("\\\n", " ").splitlines() if language in ("", "sh") else []
        found += [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedhyper ")]
    return [words for words in found if words != ["demo"]]


PAGES = {
    str(path.relative_to(ROOT)): commands(path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found and page not in ELSEWHERE])
def test_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in PAGES[page]:
        with pytest.raises(SystemExit) as ended:
            main(small(words))
        assert ended.value.code == 0, f"{page}: fedhyper {' '.join(words)}"


def test_the_reader_of_commands() -> None:
    page = "```python\nfedhyper = 1\n```\n```sh\nfedhyper run a \\\n  b=1   # why\nls\n```\n```\nfedhyper demo\n```\n"
    assert commands(page) == [["run", "a", "b=1"]]
