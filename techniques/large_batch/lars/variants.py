"""Has the public forms of LARS and what they differ in; technique.py's docstring has the table."""

from __future__ import annotations

from typing import Literal

Variant = Literal["paper", "timm", "moco", "optax"]
INSIDE: tuple[Variant, ...] = ("paper", "optax")  # the learning rate is inside the momentum
SEPARATE: tuple[Variant, ...] = ("paper", "timm")  # the denominator is ||g|| + beta ||w||, not ||g + beta w||
TIMM_EPS = 1e-8
