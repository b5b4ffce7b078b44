"""Reads and writes amounts as people write them."""

from __future__ import annotations

import math
import re


def bytes_of(text: str) -> float:
    """Reads 24GB, 24GiB, 500MB/s: bytes. Raises ValueError."""
    amount = re.fullmatch(r"(\d*\.?\d+)\s*([kMGT]?)(i?)(B?)(?:/s)?", text.strip(), re.IGNORECASE)
    if amount is None or not float(amount[1]) > 0:
        raise ValueError(f"{text!r} is no amount of bytes: write 24GB, 24GiB or 25GB/s")
    if not (amount[2] or amount[4]):
        raise ValueError(f"{text} of what? Write {text}GB or {text}GiB, or {text}B for bytes")
    return float(amount[1]) * (1024 if amount[3] else 1000) ** " KMGT".index(amount[2].upper() or " ")


def amount_of(nbytes: float) -> str:
    """Writes three digits, in units of 1000 bytes, as devices are sold: what :func:`bytes_of` reads."""
    rounded = float(f"{nbytes:.3g}")
    power = min(4, max(0, int(math.log10(max(rounded, 1)) // 3)))
    return f"{rounded / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
