"""Compiles Adam's kernel (`techniques.shared.adam_kernel`, which AdamW has, too) for L2 regularisation."""

from __future__ import annotations

from techniques.shared import adam_kernel

MANIFESTS = adam_kernel.manifests(decoupled=False)
