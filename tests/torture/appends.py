"""``kill -9`` of a process that appends records in a loop: what it acknowledged is there, whole."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from suite.record.store import Store
from tests import factories
from tests.torture import Row, Scale, row


def attack(scale: Scale) -> Iterator[Row]:
    coin, outcomes, acknowledged, torn = random.Random(0), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(scale.trials(200)):
            results = Path(folder) / str(trial % 10)  # later ones append after what earlier ones left
            told = killed_while_appending(results, coin.uniform(0, 0.05))
            acknowledged += len(told)
            records, problems = Store(results).read()
            torn = max(torn, len(problems))
            lost = told - {each.id for each in records.counted}
            outcomes[f"lost {len(lost)}" if lost else "held"] += 1
    yield row(f"kill -9 inside a loop of appends ({acknowledged} acknowledged, {torn} torn lines named)", outcomes)


def killed_while_appending(results: Path, after_s: float) -> set[str]:
    """The ids that a process said to have stored, until it was killed ``after_s`` seconds after the first."""
    said, saying = os.pipe()
    child = os.fork()
    if not child:
        store = Store(results)
        while True:
            line = factories.counted(id=uuid.uuid4().hex)
            store.append(line, "here")
            os.write(saying, line.id.encode())
    os.close(saying)
    with os.fdopen(said, "rb") as told:
        first = told.read(32)
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ids = (first + told.read()).decode()
    return {ids[start : start + 32] for start in range(0, len(ids), 32)}
