"""Has the kernels of x + s b with s a vector: LayerScale's (`techniques.shared.residual_vector_kernel`)."""

from __future__ import annotations

from techniques.shared import residual_vector_kernel

MANIFESTS = residual_vector_kernel.MANIFESTS
