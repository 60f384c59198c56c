"""Real Flower processes on loopback: the Simulation Engine, a SuperLink with SuperNodes, and what kills do to a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedhyper.lab.flower_new import new_app
from fedhyper.storage import checkpoint
from tests.flower_processes import BIN, Federation, Stillness, descendants, environment, free_ports, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.timeout(7200)]  # what stands still is noticed long before

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy.md"


def weights(log: str) -> str:
    """The digest of the final weights that the app prints."""
    found = re.findall(r"rounds (\d+), weights ([0-9a-f]{16})", log)
    assert found, log[-3000:]
    return str(found[-1][1])


def test_simulation_engine_six_rounds_of_ten_clients_twice_the_same_bits(tmp_path: Path) -> None:
    """New node ids, new order of replies, half of the nodes sampled: the same weights."""
    app = new_app(tmp_path / "app")
    with Federation(tmp_path / "federation", simulation=True) as federation:
        digests = []
        for _ in range(2):
            options = ("--federation-config", "num-supernodes=10 client-resources-num-cpus=1")
            run = federation.submit(app, "rounds=6 fraction-train=0.5 local-lr=0.05", *options)
            assert federation.finish(run) == "finished:completed", federation.app_log(run)[-3000:]
            log = federation.app_log(run)
            assert log.count("Sampled 5 nodes (out of 10)") == 6
            # up to four rounds in which rates are tried out, then everybody counts
            used = re.findall(r"'fedhyper.clients-used': (\d+), 'fedhyper.clients-rejected': (\d+)", log)
            assert used[4:6] == [("5", "0"), ("5", "0")]
            digests.append(weights(log))
    assert digests[0] == digests[1]


def test_superlink_with_three_supernodes_loses_a_node_and_a_server(tmp_path: Path) -> None:
    """One federation: a run undisturbed; its ServerApp killed, then the whole SuperLink, and resumed each time; a
    SuperNode killed in mid-round."""
    app = new_app(tmp_path / "app")
    with Federation(tmp_path / "federation") as federation:
        federation.supernodes(3)
        whole = federation.submit(app, "rounds=3 local-lr=0.05")
        assert federation.finish(whole) == "finished:completed", federation.app_log(whole)[-3000:]
        reference = weights(federation.app_log(whole))

        for victim in ("ServerApp", "SuperLink"):
            saved = tmp_path / f"{victim}.ckpt"
            config = f"rounds=3 local-lr=0.05 checkpoint='{saved}'"
            federation.submit(app, config)
            wait_for("the first round", saved.exists)
            if victim == "ServerApp":
                [server] = wait_for("the ServerApp", lambda: federation.below("superlink", "flwr-serverapp"))
                os.kill(server, signal.SIGKILL)
            else:
                federation.kill("superlink")
                federation.superlink()  # the nodes come back by themselves
            done = checkpoint.load(saved)[1]["round"]
            assert 1 <= done < 3
            resumed = federation.submit(app, f"{config} resume=true")
            assert federation.finish(resumed) == "finished:completed", federation.app_log(resumed)[-3000:]
            log = federation.app_log(resumed)
            assert f"going on after round {done}" in log
            assert weights(log) == reference

        run = federation.submit(app, "rounds=2 local-lr=0.05 delay=2.0")
        wait_for("round 1", lambda: "Sampled 3 nodes" in federation.app_log(run))
        wait_for("the client at work", lambda: federation.below("node2", "flwr-clientapp"))
        federation.kill("node2")
        assert federation.finish(run) == "finished:completed", federation.app_log(run)[-3000:]
        log = federation.app_log(run)
        assert "'fedhyper.clients-used': 2" in log
        assert weights(log) != reference


def test_the_deployment_guide_as_written_with_tls_and_keys(tmp_path: Path) -> None:
    """The lines of docs/deploy.md, one after the other; only the ports are other ones."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DEPLOY.read_text(), flags=re.DOTALL | re.MULTILINE)
    script = "set -e\n" + "\n".join(blocks)
    link, *nodes = free_ports(4)
    assert script.count("8443") >= 4
    script = script.replace("8443", str(link)).replace(
        "$((9094 + i))", f"$(echo {' '.join(map(str, nodes))} | cut -d' ' -f$((i+1)))"
    )
    script = script.replace("rounds=3", "rounds=2")
    home = tmp_path / "home"
    log = tmp_path / "guide.log"
    with log.open("wb") as out:
        guide = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment(home), stdout=out, stderr=out, start_new_session=True
        )
    started: set[int] = set()
    try:
        still = Stillness(600)  # a minute in all on an idle machine, but a busy one may take any time
        while guide.poll() is None:
            started |= set(descendants(guide.pid))
            still.watch(started, *(path.stat().st_size for path in tmp_path.glob("*.log")))
            assert not still, log.read_text()[-3000:]
            time.sleep(0.5)
        text = log.read_text()
        assert guide.returncode == 0, text[-3000:]
        assert "finished:completed" in text.replace("\n", ""), text[-3000:]
        assert "'fedhyper.clients-used': 3, 'fedhyper.clients-rejected': 0" in text
        assert checkpoint.load(tmp_path / "run.ckpt")[1]["round"] == 2
        assert _turned_away(tmp_path, home, link)
    finally:
        for pid in {*started, guide.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        guide.wait(10)


def _turned_away(root: Path, home: Path, link: int) -> bool:
    """Whether a node whose key nobody registered ends by itself, with an error."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", root / "stranger"], check=True
    )
    with (root / "stranger.log").open("wb") as out:
        node = subprocess.Popen(
            [
                *(
                    str(BIN / "flower-supernode"),
                    "--superlink",
                    f"127.0.0.1:{link}",
                    "--root-certificates",
                    "keys/ca.crt",
                ),
                *("--host", "127.0.0.1", "--port", str(free_ports(1)[0]), "--auth-supernode-private-key", "stranger"),
            ],
            cwd=root,
            env=environment(home),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        return node.wait(1800) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
