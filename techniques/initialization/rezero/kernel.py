"""Has the kernels of x + s b with s a number: ReZero's, SkipInit's and Fixup's
(`techniques.shared.residual_kernel`)."""

from __future__ import annotations

from techniques.shared import residual_kernel

MANIFESTS = residual_kernel.MANIFESTS
