"""A hub that accepts and stays silent: a run ends with its budget and says why."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator

from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, SHORT, place

MINUTES = 0.2


def attack(scale: Scale) -> Iterator[Row]:
    yield row("a hub that accepts and stays silent", Counter(silent() for _ in range(scale.trials(3))))


def silent() -> str:
    """One trial, in words."""
    with place({"twin": "pass"}) as at, socket.create_server(("127.0.0.1", 0)) as hub:
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        start_s = time.monotonic()
        command = at.start(
            "run",
            *SHORT,
            "-t",
            "twin",
            "--minutes",
            MINUTES,
            "--data",
            "owner/name",
            HF_ENDPOINT=endpoint,
            HF_HOME=str(at.folder / "hub"),
            HF_HUB_OFFLINE="0",
        )
        told = command.communicate(timeout=LIMIT_S)[1].decode()
        took_s = time.monotonic() - start_s
        if "owner/name did not arrive within the budget of 0.2 minutes" not in told or "Traceback" in told:
            return f"it says: {told.splitlines()[-1] if told else 'nothing'}"
        return at.left() or ("held" if command.returncode == 5 else f"exit code {command.returncode} in {took_s:.0f} s")
