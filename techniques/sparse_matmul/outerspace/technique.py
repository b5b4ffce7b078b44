"""Implements OuterSPACE: products of sparse matrices as sums of outer products, multiplied first and merged afterwards.

Pal, Beaumont, Park, Amarnath, Feng, Chakrabarti, Kim, Blaauw, Mudge & Dreslinski, "OuterSPACE: An Outer Product Based
Sparse Matrix Multiplication Accelerator" (HPCA 2018):

    multiply    for each k: column k of A times row k of B, each read once
    merge       for each row: the lists of products that were made for it are merged, equal columns summed

Here it multiplies the pruned weights of a model, whose other operand is dense, so that each row k of it is read once,
too. ``techniques/sparse_matmul/shared/dataflows.py`` has it for two sparse matrices, with every access counted, and
``traffic.py`` what that takes of the accelerator's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from techniques.sparse_matmul.shared.pruned_products import Dataflow, PrunedProducts


@dataclass
class Outerspace(PrunedProducts):
    """``sparsity`` is the share of zeros of each matrix; 0 is dense training."""

    dataflow: ClassVar[Dataflow] = "outer"
