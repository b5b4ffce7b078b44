"""Has ViTCoD's numbers: what is quoted of its chip, what its released simulator and a corrected one say, and what its
two parts of a mask take on this machine."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.shared.skipping import TOPIC, Head, as_it_is, beside, drawn, drift_here, without_model
from techniques.attention.vitcod.chip import HEADS, TOKENS, WIDTH, modelled, over_gpu
from techniques.attention.vitcod.masks import informative, split_attention
from techniques.attention.vitcod.technique import Vitcod
from techniques.shared.chips.headlines import headlines
from techniques.shared.chips.numbers import drift, numbers, quoted


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``headlines`` and ``numbers``."""
    lab.progress(0.0, "attending in two parts")
    folder, head = Path(__file__).parent, drawn(TOKENS, TOPIC)
    mask = informative(head.pairs.scores.softmax(-1)[0, 0], Vitcod().information, leading=1)
    split = as_it_is(f"both parts of a mask, merged, {TOKENS} tokens", head, lambda: in_two_parts(head, mask))
    here = [split, drift_here(TOKENS)]
    values = {
        "speed_gpu": beside(over_gpu(), here, drift(TOKENS, WIDTH, HEADS)),
        "speed_cpu": without_model(here, "the paper's CPU, and what it ran there, are not known here"),
        "speed_sanger": without_model(here, "how the paper scaled Sanger to this chip's size is not known here"),
    }
    return [headlines(folder, values), numbers([*quoted(folder), *modelled(), *here])]


def in_two_parts(head: Head, mask: Tensor) -> Tensor:
    one = head.pairs._replace(query=head.query[0, 0], key=head.key[0, 0])
    return split_attention(one, head.value[0, 0], mask, Vitcod().shared)
