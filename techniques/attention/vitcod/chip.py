"""Models ViTCoD's chip: the authors' released simulator replayed in integers, also with its other half's multipliers,
and what attention is of a whole model. Modelled; ``cost.py`` has the formulas.
"""

from __future__ import annotations

from techniques.attention.vitcod.cost import decode_cycles, total_cycles
from techniques.shared.chips.headlines import Modelled, between
from techniques.shared.chips.model import chips
from techniques.shared.chips.numbers import GPU, Number, against_gpu, drift, gpu_attention_s

LAYERS = (
    (1, 2250),
    (1, 395),
    (70, 2478),
    (1, 940),
    (1, 1400),
    (20, 1787),
    (17, 1333),
    (1, 1550),
    (1, 460),
    (9, 770),
    (10, 1040),
    (31, 601),
)
"""Dense columns, and kept pairs besides, of DeiT-Tiny's layers at 95 % sparsity: solved for from the authors' log."""
LOADED, OTHERS = 9492, 2043156  # cycles of loading, and of all linear layers, by that log
TOKENS, WIDTH, HEADS = 197, 64, 3
NARROW = 8  # times fewer multipliers in the simulator's other half


def totals() -> tuple[int, int]:
    """Counts the cycles of all layers: as released, where loading is the longer part, and with as many multipliers as
    the simulator's linear layers have, where computing is."""
    computed = total_cycles(LAYERS)
    return max(LOADED, computed), max(LOADED, NARROW * computed)


def modelled() -> list[Number]:
    """Returns the log's own row, the corrected one, both beside a modelled GPU, and the end-to-end bound."""
    chip, (released, consistent) = chips()["vitcod"], totals()
    computed = total_cycles(LAYERS) - len(LAYERS) * decode_cycles()
    rows = []
    for cycles, level in ((released, "replay, as released"), (consistent, "replay, with 512 multipliers")):
        inputs = f"DeiT-Tiny's 12 layers at 95 % sparsity: {cycles} cycles, {computed} of them computing as released"
        seconds = cycles / chip.clock_hz / len(LAYERS)
        numbers = against_gpu(seconds, f"{chip.title}: {cycles} cycles", TOKENS, WIDTH, HEADS, inputs)
        rows += [row._replace(level=level) for row in numbers]
    share = released / (released + OTHERS)
    whole = f"attention is {share:.2%} of the released model's cycles"
    bound = Number(
        "modelled",
        "DeiT-Tiny end to end, if attention took no time",
        "the released model",
        1 / (1 - share),
        "closed form",
        whole,
    )
    return [*rows, bound, *drift(TOKENS, WIDTH, HEADS)]


def over_gpu() -> Modelled:
    """Returns the speed over unfused attention on the modelled GPU, with the multipliers of either half of the released
    simulator."""
    gpu = gpu_attention_s(TOKENS, WIDTH, HEADS, fused=False) * len(LAYERS) * chips()["vitcod"].clock_hz
    of = f"DeiT-Tiny at 95 % sparsity, by the corrected simulator to the released one, over unfused attention on {GPU}"
    return between([gpu / cycles for cycles in totals()], f"{of}, modelled")
