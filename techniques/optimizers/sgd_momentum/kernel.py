"""Has the kernel of SGD with momentum, `techniques.shared.sgd_kernel`, which Nesterov momentum has, too."""

from __future__ import annotations

from techniques.shared import sgd_kernel

MANIFESTS = sgd_kernel.MANIFESTS
