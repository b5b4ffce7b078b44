"""Checks and timings of the kernels of x + s b with s a vector: LayerScale's."""

from __future__ import annotations

from techniques.initialization.shared import residual_benches
from techniques.shared import residual_vector_kernel

BENCHES = residual_benches.benches(residual_vector_kernel, a_number=False)
