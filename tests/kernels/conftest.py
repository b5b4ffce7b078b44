"""Kernels of this process must be interpreted: Triton decides when they are imported, which may have been long ago."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:  # no wheel for this platform
    collect_ignore_glob = ["test_*.py"]
else:
    from suite.kernels.portable import INTERPRET

    if not INTERPRET.value:
        raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")
