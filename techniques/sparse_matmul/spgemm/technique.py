"""Implements the products of sparse matrix libraries: pruned weights in compressed rows, multiplied without their zeros
by MKL or cuSPARSE.

Intel's MKL on CPUs and NVIDIA's cuSPARSE on GPUs, through torch's CSR tensors; Gustavson, "Two Fast Algorithms for
Sparse Matrices: Multiplication and Permuted Transposition" (ACM TOMS 1978) is the row-wise order of their sparse times
sparse product. A pre-trained model's attention and MLP matrices keep their largest weights, one by one, and are
fine-tuned so. ``techniques/sparse_matmul/shared/dataflows.py`` has the three orders of sparse times sparse products.
"""

from __future__ import annotations

from dataclasses import dataclass

from techniques.sparse_matmul.shared.pruned_products import PrunedProducts


@dataclass
class Spgemm(PrunedProducts):
    """``sparsity`` is the share of zeros of each matrix; 0 is dense training."""
