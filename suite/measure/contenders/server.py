"""Becomes the fork server, once it has loaded the libraries: import this nowhere else.

What its children print goes to standard error, since standard output is the command's own.

The libraries are half a million objects and no garbage. Looking for some while they load takes a quarter of that time;
and each collection in a child, of which a count makes several, would search them all and copy their pages.
"""

from __future__ import annotations

import atexit
import gc
import os
import warnings

os.dup2(2, 1)  # before anything is loaded, which may print
gc.disable()

import suite.measure.contenders.contender  # noqa: E402
import suite.measure.contenders.worker  # noqa: E402, F401  what takes seconds to import
from suite.measure.contenders.processes import adopt_orphans, end_strays, forget_the_unasked  # noqa: E402

warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")  # of an orphan
atexit.register(lambda server: end_strays(server) if os.getpid() == server else None, os.getpid())
forget_the_unasked()
gc.freeze()
gc.enable()
atexit.register(gc.unfreeze)  # libraries complain of what is not taken down at the end
adopt_orphans()  # last: while it loads, a signal to the parent's group ends it, too
