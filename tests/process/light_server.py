"""What a child of a test's own server does: importing it takes no libraries that take seconds to load."""

import os
import time
from pathlib import Path

from suite.process.child import Child
from suite.process.replies import Failure
from suite.process.servers import Server


def three_of(server: Server, marks: Path) -> Child:
    """A child with a child in its session and another one out of it; each marks that it is there, and stays."""
    return Child(server, _becomes_three, marks, failing=_failing)


def _becomes_three(marks: Path) -> None:
    for leave in (lambda: None, os.setsid):
        if not os.fork():
            leave()
            break
    (marks / str(os.getpid())).touch()
    time.sleep(3600)


def _failing(error: BaseException) -> Failure:
    return "failed", str(error), ""
