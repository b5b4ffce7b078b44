"""Keeps code of another revision from reading what is in the environment of the processes that started it.

A process sees the environments of all others of its user in /proc, a CI job's tokens among them, whatever its own is.
Linux's Landlock (landlock(7)) ends that without a privilege: a process in a domain may inspect no process outside of it
(a ptrace access check, also for root), and hands the domain down to all that it starts. The domain here restricts one
thing more, and nobody does that: making block devices.

Where a system has no Landlock, or one without that check (some virtual machines), nothing confines the code; whoever
asks is told (:func:`hides_environments`). Files that
the user can read stay readable, such as credentials that a checkout keeps in ``.git/config``.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache

CREATE_RULESET, RESTRICT_SELF = 444, 446  # landlock_create_ruleset(2), landlock_restrict_self(2), on all architectures
MAKE_BLOCK = 1 << 11  # LANDLOCK_ACCESS_FS_MAKE_BLOCK: a domain must handle something
PR_SET_NO_NEW_PRIVS = 38  # prctl(2): without it a domain needs a privilege
PROBE_LIMIT_S = 60.0
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "AUTH")
_libc = ctypes.CDLL(None)


def confine() -> None:
    """Shuts this process, and all that it starts, out of every other one. Does nothing where there is no Landlock."""
    if sys.platform != "linux":
        return
    handled = ctypes.c_uint64(MAKE_BLOCK)
    ruleset = _libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), 0)
    if ruleset >= 0:
        _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.syscall(RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


@cache
def hides_environments() -> bool:
    """Tells whether a confined process cannot read this one's environment: tried, by one that does nothing else."""
    if not os.path.exists("/proc/self/environ"):
        return True
    script = f"import sys\ntry: sys.exit(bool(open('/proc/{os.getpid()}/environ', 'rb').read(1)))\nexcept OSError: pass"
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], preexec_fn=confine, env={}, timeout=PROBE_LIMIT_S, check=False
    )
    return tried.returncode == 0


def exposed(passed: frozenset[str]) -> list[str]:
    """Returns the variables of this process's environment, besides those that are ``passed``, that seem to be secrets
    and that code of another revision could read; none where it is confined."""
    named = [name for name in os.environ if name not in passed and any(word in name.upper() for word in SECRETS)]
    return sorted(named) if named and not hides_environments() else []
