"""Tells whether the optimizer keeps of a parameter what it kept before: for probes of ``pld``, ``progressive_patch``
and ``autoprog``, where parameters rest, stay or come anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def same_state(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Tells whether two states of a parameter have the same names and, to the bit, the same values."""
    if before.keys() != after.keys():
        return False
    pairs = [(value, after[key]) for key, value in before.items()]
    return all(torch.equal(*pair) if isinstance(pair[0], Tensor) else pair[0] == pair[1] for pair in pairs)
