"""Checks and timings of the kernels of x + s b with s a number: ReZero's, SkipInit's and Fixup's."""

from __future__ import annotations

from techniques.initialization.shared import residual_benches
from techniques.shared import residual_kernel

BENCHES = residual_benches.benches(residual_kernel, a_number=True)
