"""Has the servers that fork contenders and deputies in milliseconds, with the libraries loaded.

::

    command ── server of the portable arithmetic ── contenders that count and learn
            └─ server of one timing ── its contenders, in lock-step

What is decided when a process starts holds for all that it forks (:mod:`suite.process.servers`). So what is off the
clock shares one server of each arithmetic, and every set of processes that is timed has a server of its own: contenders
of one server share a layout, which favours one side of them by some per cent.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from functools import cache

from suite.process.servers import Server
from suite.record import numerics

PRELOADED = ["suite.measure.contenders.contender", "suite.measure.contenders.worker"]  # what takes seconds to import
LONGEST_PADDING = 4096  # bytes of the environment, which lies above the stack: a page


def loaded(environment: Mapping[str, str], modules: Sequence[str] = ()) -> Server:
    """Returns a server with what contenders need, and these variables and modules."""
    # Threads that wait at OpenMP's barriers must sleep: where a neighbour takes a core, spinning made steps 4 to 14
    # times slower (measured on two shared cores). It counts only before the library is loaded.
    # A server that has asked CUDA itself for its GPUs cannot lend one to its children; NVML may be asked.
    # The profiler, which looks for threads that no counter sees, remarks each time that it begins and ends.
    own = {
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99"),
    }
    arithmetic = numerics.spelled({**os.environ, **environment})
    return Server(own | numerics.compiled_apart(arithmetic) | dict(environment), [*PRELOADED, *modules])


@cache
def shared(arithmetic: str) -> Server:
    """Returns the server of all that runs under an arithmetic. It ends with this process."""
    return loaded(numerics.environment(arithmetic))


def of_one_timing(coin: random.Random) -> Server:
    """Returns a server for one set of processes: with an order of hashes, and a place of the stack, that no other
    has."""
    padding = "x" * coin.randrange(LONGEST_PADDING)
    return loaded({"PYTHONHASHSEED": str(coin.randrange(2**32)), "LEANTRAIN_LAYOUT": padding})
