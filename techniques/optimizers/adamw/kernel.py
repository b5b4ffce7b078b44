"""AdamW's kernel is Adam's (`techniques.optimizers.adam.kernel`), compiled for decoupled decay."""

from __future__ import annotations

from techniques.optimizers.adam import kernel

MANIFESTS = kernel.manifests(decoupled=True)
