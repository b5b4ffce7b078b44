"""Has SAM's kernels, `techniques.sharpness.shared.ascent_kernel`: other techniques ascend with them, too."""

from __future__ import annotations

from techniques.sharpness.shared import ascent_kernel

MANIFESTS = ascent_kernel.MANIFESTS
