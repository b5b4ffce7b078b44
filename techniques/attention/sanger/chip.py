"""Models Sanger's array on a mask: the prediction, scores and values as phases of the accelerator model. Modelled.

The prediction's products of 4 bits take a sixteenth of the units' time, which the authors' released cost model leaves
out; scores and values take the density over the load balance of pack and split (``packing.py``). Operands have 16 bits
and are read once a phase. ``cost.py`` replays the released model, and without its slip.
"""

from __future__ import annotations

from techniques.attention.sanger.cost import layer_s
from techniques.shared.chips.headlines import Modelled, between
from techniques.shared.chips.model import Chip, Phase, chips, time_s
from techniques.shared.chips.numbers import GPU, Number, against_gpu, against_itself, drift, gpu_attention_s

TOKENS, WIDTH, HEADS, BITS = 512, 64, 12, 4
PAPERS = ((0.087, 0.56), (0.331, 0.74))  # density and balance: second-hand


def phases(tokens: int, density: float, balance: float) -> list[Phase]:
    """Returns the phases of HEADS heads; density and balance 1 without a prediction is dense attention."""
    macs, rows = tokens**2 * WIDTH * HEADS, tokens * WIDTH * HEADS * 2
    products = Phase(density * macs, 16, 2 * rows, balance)
    return [Phase(macs, BITS, 2 * rows * BITS / 16), products, products]


def dense(tokens: int) -> list[Phase]:
    return phases(tokens, 1.0, 1.0)[1:]


def modelled(seen: list[dict[str, float]]) -> list[Number]:
    """Returns replays of the released model, with its slip and without, the phases at the paper's densities, and at
    those that trained models here were ``seen`` to have."""
    chip, whole = chips()["sanger"], layer_s(TOKENS, 1.0, 1.0)
    layer = f"a layer, {TOKENS} tokens, density {PAPERS[0][0]}, balance {PAPERS[0][1]}"
    rows = [
        Number(
            "modelled",
            layer,
            "dense on the same array",
            whole / layer_s(TOKENS, *PAPERS[0], as_released=as_is),
            "replay, as released" if as_is else "replay, corrected",
            "the authors' cost model",
        )
        for as_is in (True, False)
    ]
    for density, balance in PAPERS:
        rows += at(chip, density, balance, f"{TOKENS} tokens, the paper's density {density}, balance {balance}")
    for trace in seen[:1]:
        inputs = f"{TOKENS} tokens with a recorded mask's density {trace['density']:.3g}, {trace['load_balance']:.3g}"
        rows += at(chip, trace["density"], trace["load_balance"], inputs)
    return [*rows, *drift(TOKENS)]


def at(chip: Chip, density: float, balance: float, inputs: str) -> list[Number]:
    own = phases(TOKENS, density, balance)
    return [
        *against_itself(chip, own, dense(TOKENS), inputs),
        *against_gpu(time_s(own, chip), chip.title, TOKENS, WIDTH, HEADS, inputs),
    ]


def over_gpu(seen: list[dict[str, float]]) -> Modelled:
    """Returns the speed over unfused attention on the modelled GPU, at the paper's densities and at what was
    ``seen``."""
    shares = [*PAPERS, *((call["density"], call["load_balance"]) for call in seen[:1])]
    gpu, chip = gpu_attention_s(TOKENS, WIDTH, HEADS, fused=False), chips()["sanger"]
    inputs = f"{TOKENS} tokens, density {', '.join(f'{density:.3g}' for density, _ in shares)}"
    ends = [gpu / time_s(phases(TOKENS, *share), chip) for share in shares]
    return between(ends, f"the array over unfused float32 attention on {GPU}, modelled; {inputs}")
