"""What the fork server becomes, once it has loaded the libraries: import this nowhere else.

What its children print goes to standard error, since standard output is the command's own.
"""

from __future__ import annotations

import atexit
import os
import warnings

os.dup2(2, 1)  # before anything is loaded, which may print

import suite.measure.contender  # noqa: E402
import suite.measure.worker  # noqa: E402, F401  what takes seconds to import
from suite.measure.processes import adopt_orphans, end_strays  # noqa: E402

warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")  # of an orphan
atexit.register(lambda server: end_strays(server) if os.getpid() == server else None, os.getpid())
adopt_orphans()  # last: while it loads, a signal to the parent's group ends it, too
