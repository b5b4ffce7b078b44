"""Builds the dynamic maps of AdamW's moments in 8 bits (2110.02861, section 2.1): the second is never negative."""

from __future__ import annotations

from techniques.precision.shared.dynamic_map import DynamicMap

FIRST, SECOND = DynamicMap(8, signed=True), DynamicMap(8, signed=False)
