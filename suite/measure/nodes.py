"""Runs a command on several nodes at once, which this machine pretends to be: what a cluster's launcher does on real
ones.

    python -m suite.measure.nodes --nodes 2 --mbit 100 -- \\
        torchrun --nnodes 2 --node-rank {node} --nproc-per-node 2 --master-addr {first} --master-port 29500 \\
        -m suite.measure.torchrun -t zero3_fsdp -b gpt

Each node is a network namespace of its own (:mod:`suite.measure.links`). In the command ``{node}`` becomes the node's
number, ``{address}`` its address and ``{first}`` that of node 0. When one of them fails the others are ended, and
nothing that they started is left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from suite.loop.technique import Unavailable
from suite.measure.links import INTERFACE, LinkedNodes, address
from suite.process.processes import end_session

WATCHED_S = 0.05
GRACE_S = 10.0  # in which the others say what they lost


def on_every_node(network: LinkedNodes, command: Sequence[str], limit_s: float) -> int:
    """Runs the command on all nodes; 0 where all of them end with it, else the first other exit status, 124 after
    ``limit_s``."""
    environment = os.environ | dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), INTERFACE)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(network.nodes):
            names = {"{node}": str(node), "{address}": address(node), "{first}": address(0)}
            own = [*network.inside(node), *(_filled(word, names) for word in command)]
            running.append(subprocess.Popen(own, env=environment, start_new_session=True, stdin=subprocess.DEVNULL))
        return _status(running, time.monotonic() + limit_s)
    finally:
        for process in running:
            end_session(process.pid)
            process.wait()


def _filled(word: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


def _status(running: Sequence[subprocess.Popen[bytes]], end_s: float) -> int:
    failed = 0
    while None in [process.poll() for process in running]:
        codes = [process.returncode for process in running if process.returncode]
        if codes and not failed:
            failed, end_s = codes[0], min(end_s, time.monotonic() + GRACE_S)
        if time.monotonic() > end_s:
            return failed or 124
        time.sleep(WATCHED_S)
    return failed or next((process.returncode for process in running if process.returncode), 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the nodes' command; 4 where this machine allows no namespaces."""
    parser = argparse.ArgumentParser(prog="python -m suite.measure.nodes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--mbit", type=float, help="of each node, sent and received; none without it")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which all is ended")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    asked = parser.parse_args(arguments)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if asked.nodes < 1 or not command:
        parser.error("name one node or more, and behind -- the command that runs on each")
    try:
        with LinkedNodes(asked.nodes) as network:
            network.limit(asked.mbit)
            return on_every_node(network, command, asked.seconds)
    except Unavailable as error:
        print(f"unavailable ({error})", file=sys.stderr)
        return 4


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    sys.exit(main())
