"""Writes counters' numbers as people read them."""

from __future__ import annotations


def amount(name: str, number: int | None) -> str:
    """Writes a counter's number with its unit, four digits; a dash where there is none."""
    if number is None:
        return "-"
    base, units = (1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if name == "flops" or name.endswith("_count"):
        base, units = 1000, ("", "K", "M", "G", "T", "P")
    power = max(index for index in range(len(units)) if index == 0 or number >= base**index)
    return f"{number / base**power:.4g} {units[power]}".strip() if power else f"{number} {units[0]}".strip()
