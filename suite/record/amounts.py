"""Amounts as people write them."""

from __future__ import annotations

import re


def bytes_of(text: str) -> float:
    """24GB, 24GiB, 500MB/s: bytes. Raises ValueError."""
    amount = re.fullmatch(r"(\d*\.?\d+)\s*([kMGT]?)(i?)(B?)(?:/s)?", text.strip(), re.IGNORECASE)
    if amount is None or not float(amount[1]) > 0:
        raise ValueError(f"{text!r} is no amount of bytes: write 24GB, 24GiB or 25GB/s")
    if not (amount[2] or amount[4]):
        raise ValueError(f"{text} of what? Write {text}GB or {text}GiB, or {text}B for bytes")
    return float(amount[1]) * (1024 if amount[3] else 1000) ** " KMGT".index(amount[2].upper() or " ")
