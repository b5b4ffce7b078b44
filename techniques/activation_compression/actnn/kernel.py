"""Has the kernels that pack and unpack activations (`techniques.shared.packed_kernel`)."""

from __future__ import annotations

from techniques.shared import packed_kernel

MANIFESTS = packed_kernel.MANIFESTS
