"""Has the kernels of Mesa: those of its codes alone, and those of layers that write them beside their output."""

from __future__ import annotations

from techniques.activation_compression.mesa import codes_kernel, fused_kernel

MANIFESTS = codes_kernel.MANIFESTS | fused_kernel.MANIFESTS
