"""A command on several nodes of this machine: each knows which it is, and one that fails ends the others."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.measure import links, nodes
from suite.measure.links import reason_without_links
from suite.process.processes import living

WHY = reason_without_links()
needs_links = pytest.mark.skipif(bool(WHY), reason=f"unavailable ({WHY})")

TALK = """
import socket, sys
node, first, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if node == 0:
    with socket.create_server(("", 29500)) as server:
        open(folder + "/ready", "w").close()
        said = server.accept()[0].recv(64).decode()
    open(folder + "/said", "w").write(said)
else:
    import os, time
    while not os.path.exists(folder + "/ready"):
        time.sleep(0.01)
    socket.create_connection((first, 29500)).sendall(f"node {node} at {sys.argv[4]}".encode())
"""


@needs_links
def test_nodes_talk_by_the_addresses_that_the_command_gets(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TALK, "{node}", "{first}", str(tmp_path), "{address}"]
    assert nodes.main(["--mbit", "100", "--seconds", "60", "--", *command]) == 0
    assert (tmp_path / "said").read_text() == "node 1 at 10.77.0.2"


@needs_links
def test_a_node_that_fails_ends_the_others_and_what_they_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "GRACE_S", 0.1)
    both = f"sleep 600 & echo $! >{tmp_path}/other{{node}}; test {{node}} = 0 && wait; exit 7"
    start_s = time.monotonic()
    assert nodes.main(["--", "sh", "-c", both]) == 7
    assert time.monotonic() - start_s < 60  # of the 600
    left = {int((tmp_path / f"other{node}").read_text()) for node in range(2)}
    assert not left & living().keys()


@needs_links
def test_a_command_that_never_ends_is_ended() -> None:
    assert nodes.main(["--seconds", "0.3", "--", "sleep", "600"]) == 124


@needs_links
def test_nothing_is_left_where_it_is_told_to_end(tmp_path: Path) -> None:
    names = [tmp_path / f"node{node}" for node in range(2)]
    begun = f"echo $$ >{tmp_path}/begun{{node}}; mv {tmp_path}/begun{{node}} {tmp_path}/node{{node}}; sleep 600"
    running = subprocess.Popen([sys.executable, "-m", "suite.measure.nodes", "--", "sh", "-c", begun])
    end_s = time.monotonic() + 60
    while not all(name.exists() for name in names) and time.monotonic() < end_s:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 128 + signal.SIGTERM
    assert not {int(name.read_text()) for name in names} & living().keys()


def test_without_namespaces_it_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert nodes.main(["--", "true"]) == 4
    assert capsys.readouterr().err.startswith("unavailable (no network namespace")
    assert links.TOOLS


def test_it_asks_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nodes.main(["--nodes", "2"])
    assert "behind --" in capsys.readouterr().err
