"""Ranks on nodes of a network of their own: limited where it says so, and gone with whoever made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.loop.technique import Unavailable
from suite.measure import links
from suite.measure.contenders.contender import Contender
from suite.measure.links import LinkedNodes, address, holders, reason_without_links
from suite.record.job import Job, Setting

ROOT = Path(__file__).parents[2]
WHY = reason_without_links()
needs_links = pytest.mark.skipif(bool(WHY), reason=f"unavailable ({WHY})")
MBIT = 40.0

HELD_BY_ANOTHER = """
import time
from suite.measure.links import LinkedNodes
network = LinkedNodes(2).__enter__()
network.limit(10)
print(*(each.pid for each in network._holders), flush=True)
time.sleep(600)
"""


def interfaces() -> str:
    """Of the machine's own network, and what shapes their traffic."""
    return subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout


@needs_links
def test_ranks_get_no_more_than_the_limit_and_the_machine_s_own_network_stays_as_it_was() -> None:
    before = interfaces()
    setting = Setting(baseline="gpt", size="pico", steps=10)
    with LinkedNodes(2) as network, Contender(Job(setting=setting, stack="dp_ddp"), network=network) as contender:
        contender.prepare()
        contender.set_up()
        network.limit(MBIT)
        limited = contender.link()
        assert len(contender.block(2).losses) == 2
        sent = contender.traffic()
        assert len(contender.block(1).losses) == 1  # the harness knows of the step whose traffic was counted
        network.limit(None)
        assert interfaces() == before
    assert limited.bytes_per_s * 8 / 1e6 < 1.1 * MBIT  # whatever else the machine does; without it, thousands
    assert sent.sent_bytes > 0 and sent.messages > 0
    assert interfaces() == before


@needs_links
def test_nodes_reach_each_other_and_nothing_else() -> None:
    ask = "import socket; socket.create_connection(({0!r}, 9), timeout=5)"
    with LinkedNodes(2) as network:

        def answer(host: str) -> str:
            command = [*network.inside(0), sys.executable, "-c", ask.format(host)]
            return subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()[-1]

        assert "refused" in answer(address(1))  # by the other node, which nothing listens on
        assert "unreachable" in answer("192.0.2.1")  # of RFC 5737


@needs_links
def test_nothing_is_left_of_a_network_whose_maker_was_killed() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    maker = subprocess.Popen(
        [sys.executable, "-c", HELD_BY_ANOTHER], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert maker.stdout is not None
    held = [int(each) for each in maker.stdout.readline().split()]
    assert len(held) == 3 and all(Path(f"/proc/{each}").exists() for each in held)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    end_s = time.monotonic() + 30
    while any(Path(f"/proc/{each}/ns/net").exists() for each in held) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{each}/ns/net").exists() for each in held)


def test_where_tools_or_rights_are_missing_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert reason_without_links() == "ip, tc, unshare, nsenter not found: install iproute2 and util-linux"
    monkeypatch.setattr(links, "TOOLS", ())
    with pytest.raises(Unavailable, match="no network namespace"), LinkedNodes(2):
        pass


@needs_links
def test_a_half_made_network_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LinkedNodes] = []

    def refuses(self: LinkedNodes) -> None:
        made.append(self)
        self._command(0, "ip", "link", "add", "x", "type", "no_such_type")

    monkeypatch.setattr(LinkedNodes, "_join", refuses)
    assert reason_without_links().startswith("no link between namespaces: ip link add: ")
    assert made and made[0]._holders == []


def test_one_process_needs_no_node_and_many_need_as_many() -> None:
    network = LinkedNodes(2)
    assert holders(None, 3) == [None] * 3 and holders(network, 1) == [None]
    with pytest.raises(ValueError, match="make a larger one"):
        holders(network, 3)
