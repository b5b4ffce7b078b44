"""Makes a link that matters: ranks in network namespaces of their own, joined by a switch whose ports have a rate
limit.

::

    node 0  eth0 ── port0 ┐                    each node is a network namespace that a process holds, and so is the
    node 1  eth0 ── port1 ┼ bridge (switch)    switch; ``tbf`` limits what leaves eth0 and what leaves its port
    node 2  eth0 ── port2 ┘

On loopback communication is free, so that whatever compresses it loses. The namespaces have no name, no file and no
address of the machine's: they end with the processes that hold them, those with their standard input, and that with
whoever made the network, however it ends. Nothing is left to be removed.

Limits (measured with gloo on two cores). What tbf lets through at once after a pause is free, and compressed gradients
are small: so its burst is small. It cuts segments that are longer, which costs ten times the processor time: so senders
make none. Above 1 Gbit/s two cores are slower than the link. There is no added delay: the kernel may lack netem.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from suite.loop.technique import Unavailable

INTERFACE = "eth0"
TOOLS = ("ip", "tc", "unshare", "nsenter")  # of iproute2 and util-linux
CLONE_NEWNET = 0x40000000  # sched.h
BURST_BYTES, SEGMENT_BYTES, QUEUE = 1 << 15, 1 << 14, "100ms"
MOST_MBIT = 1000.0  # that two cores can fill
PATIENCE_S = 10.0
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
HOLD = "echo held; exec cat >/dev/null"  # until its standard input ends


def address(node: int) -> str:
    """Returns the address of a node on its network."""
    return f"10.77.0.{node + 1}"


def reason_without_links() -> str:
    """Tells why no network can be made here; empty where one can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    try:
        with LinkedNodes(2) as network:
            network.limit(MOST_MBIT)
    except Unavailable as error:
        return str(error)
    return ""


@dataclass
class LinkedNodes:
    """Holds ``nodes`` network namespaces on one switch. Use as a context manager: makes it and takes it away.

    Raises Unavailable where namespaces, veth pairs or tbf are not allowed or not there.
    """

    nodes: int
    _held: ExitStack = field(init=False, repr=False, default_factory=ExitStack)
    _holders: list[subprocess.Popen[str]] = field(init=False, repr=False, default_factory=list)

    def __enter__(self) -> LinkedNodes:
        with ExitStack() as stack:
            stack.callback(self._release)
            for _ in range(self.nodes + 1):
                self._hold()
            self._join()
            self._held = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def holder(self, node: int) -> int:
        """Returns the process that holds a node's namespace."""
        return self._holders[node].pid

    def inside(self, node: int) -> list[str]:
        """Returns what a command begins with to run on a node."""
        return ["nsenter", f"--net=/proc/{self.holder(node)}/ns/net", "--"]

    def limit(self, mbit: float | None) -> None:
        """Lets each node send and receive at most ``mbit`` Mbit/s; None lifts the limit."""
        for node in range(self.nodes):
            for namespace, device in ((node, INTERFACE), (self._switch, f"port{node}")):
                if mbit is None:
                    with suppress(Unavailable):  # where there is none
                        self._command(namespace, "tc", "qdisc", "del", "dev", device, "root")
                else:
                    rate = f"{round(mbit * 1e6)}bit"
                    shape = ("tbf", "rate", rate, "burst", str(BURST_BYTES), "latency", QUEUE)
                    self._command(namespace, "tc", "qdisc", "replace", "dev", device, "root", *shape)

    # how it is made ---------------------------------------------------------------------------------------------------

    @property
    def _switch(self) -> int:
        return self.nodes

    def _hold(self) -> None:
        try:
            holder = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise Unavailable(f"no network namespace: {error.strerror}: unshare") from None
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "held\n":
            raise Unavailable(f"no network namespace: {holder.stderr.read().strip()}")

    def _release(self) -> None:
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            for stream in (holder.stdin, holder.stdout, holder.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            holder.wait(PATIENCE_S)
        self._holders = []

    def _join(self) -> None:
        switch = self._switch
        self._command(switch, "ip", "link", "add", "bridge", "type", "bridge")
        self._command(switch, "ip", "link", "set", "bridge", "up")
        for node in range(self.nodes):
            port = f"port{node}"
            ends = (port, "type", "veth", "peer", "name", INTERFACE, "netns", str(self.holder(node)))
            self._command(switch, "ip", "link", "add", *ends)
            self._command(switch, "ip", "link", "set", port, "master", "bridge", "up")
            self._command(node, "ip", "address", "add", f"{address(node)}/24", "dev", INTERFACE)
            self._command(node, "ip", "link", "set", "lo", "up")
            longest = ("gso_max_size", str(SEGMENT_BYTES))
            self._command(node, "ip", "link", "set", INTERFACE, *longest, "up")
            with suppress(Unavailable):  # one that estimates the rate takes a second to find it
                self._command(node, "sh", "-c", f"echo cubic > {CONGESTION}")

    def _command(self, namespace: int, *command: str) -> None:
        try:
            done = subprocess.run(
                [*self.inside(namespace), *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"no link between namespaces: {' '.join(command[:3])}: {error}") from None
        if done.returncode:
            raise Unavailable(f"no link between namespaces: {' '.join(command[:3])}: {done.stderr.strip()}")


def enter(holder: int) -> None:
    """Moves this thread, and what it starts from now on, onto the node whose namespace the process ``holder`` holds.

    Call it before torch starts a thread. Raises Unavailable where that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with open(f"/proc/{holder}/ns/net", "rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise Unavailable(f"this process cannot enter a network namespace: {error.strerror}") from None
    os.environ |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), INTERFACE)


def holders(network: LinkedNodes | None, ranks: int) -> Sequence[int | None]:
    """Returns the holder of each rank's node, one after the other; None of the machine's own network.

    Raises ValueError where there are more ranks than nodes.
    """
    if network is None or ranks == 1:
        return [None] * ranks
    if ranks > network.nodes:
        raise ValueError(f"{ranks} ranks need as many nodes, and the network has {network.nodes}: make a larger one")
    return [network.holder(rank) for rank in range(ranks)]
