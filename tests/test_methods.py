"""Every method name that ``fedhyper methods`` lists runs through the command line."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from fedhyper.errors import UserError
from fedhyper.lab.commands import invoke
from fedhyper.sim.registry import METHODS

EXPERIMENT = str(Path(__file__).parents[1] / "experiments" / "digits.toml")


def listed(*arguments: str) -> list[dict]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert invoke(["methods", "--json", *arguments]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


RECORDS = listed()


@pytest.mark.parametrize("name", [record["name"] for record in RECORDS])
def test_every_method_runs(name: str, tmp_path: Path) -> None:
    run = ["run", EXPERIMENT, f"method={name}", "rounds=2", "--quiet", "--no-report", "--workers", "1"]
    assert invoke([*run, "--out", str(tmp_path / "silent")]) == 0
    options = next(record["options"] for record in RECORDS if record["name"] == name)
    said = [f"options.{option['name']}={json.dumps(option['default'])}" for option in options]
    assert invoke([*run, *said, "--out", str(tmp_path / "said")]) == 0
    silent, said_ = (json.loads((tmp_path / one / "summary.json").read_text()) for one in ("silent", "said"))
    assert silent["status"] == "finished"
    assert silent["weights_sha256"] == said_["weights_sha256"], "an option that is set to its default changes nothing"


def test_the_list_says_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(RECORDS) == len({record["name"] for record in RECORDS}) == 3 * len(METHODS)
    assert all(record["summary"] for record in RECORDS)
    assert invoke(["methods"]) == 0
    printed = capsys.readouterr().out
    assert "fedhyper-g+cl" in printed
    assert "options: beta1, beta2, tau" in printed
    assert invoke(["methods", "fedavg+adam"]) == 0
    assert "options.beta2 = 0.99  (in [0, 1))" in capsys.readouterr().out
    assert listed("fedprox") == [record for record in RECORDS if record["name"] == "fedprox"]
    with pytest.raises(UserError, match="did you mean 'fedavgm'"):
        invoke(["methods", "fedavgmm"])
