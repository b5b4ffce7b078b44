"""AdamW's kernel is Adam's (`techniques.shared.adam_kernel`), compiled for decoupled decay."""

from __future__ import annotations

from techniques.shared import adam_kernel

MANIFESTS = adam_kernel.manifests(decoupled=True)
