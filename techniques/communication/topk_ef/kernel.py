"""Has the kernels that find the largest entries (`techniques.communication.shared.top_k_kernel`)."""

from __future__ import annotations

from techniques.communication.shared import top_k_kernel

MANIFESTS = top_k_kernel.MANIFESTS
