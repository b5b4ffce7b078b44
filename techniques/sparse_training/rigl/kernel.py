"""Has the kernels that multiply with the kept blocks of a mask (`techniques.shared.sparse.block_sparse_kernel`)."""

from __future__ import annotations

from techniques.shared.sparse import block_sparse_kernel

MANIFESTS = block_sparse_kernel.MANIFESTS
