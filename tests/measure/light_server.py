"""A fork server for tests: as :mod:`suite.measure.contenders.server`, without the libraries that take seconds to load.

And a child for it. Imported in a test's own process this changes nothing.
"""

import atexit
import os
import sys
import time
from pathlib import Path

from suite.measure.contenders.processes import adopt_orphans, end_strays, forget_the_unasked, lead_session

if sys.argv[0] == "-c":  # in a fork server
    atexit.register(lambda server: end_strays(server) if os.getpid() == server else None, os.getpid())
    forget_the_unasked()
    adopt_orphans()


def becomes_three(marks: Path, channel: object) -> None:
    """Leads a session, with a child in it and another one out of it; each marks that it is there."""
    lead_session(of_server=True)
    for leave in (lambda: None, os.setsid):
        if not os.fork():
            leave()
            break
    (marks / str(os.getpid())).touch()
    time.sleep(3600)
