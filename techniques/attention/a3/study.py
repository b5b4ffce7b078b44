"""Has A3's numbers: what is quoted of its chip, what is modelled of it, and what its search takes on this machine."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.a3.chip import TOKENS, modelled, over_itself
from techniques.attention.a3.technique import A3, near_best
from techniques.attention.shared.kept_pairs import kept_attention
from techniques.attention.shared.skipping import HERE, Head, as_it_is, drawn, drift_here, traces
from techniques.shared.chips.headlines import Beside, headlines
from techniques.shared.chips.numbers import numbers, quoted


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``headlines`` and ``numbers``."""
    lab.progress(0.0, "searching")
    folder, seen, head = Path(__file__).parent, traces(lab, "a3", TOKENS), drawn(TOKENS)
    searched = as_it_is(f"search in its batched form and attention, {TOKENS} tokens", head, lambda: approximated(head))
    here = [searched, drift_here(TOKENS)]
    values = {"throughput": Beside(over_itself(seen), searched.speedup, f"{searched.what}, over {HERE}", None, None)}
    return [headlines(folder, values), numbers([*quoted(folder), *modelled(seen), *here])]


def approximated(head: Head) -> Tensor:
    own, pairs = A3(), head.pairs
    return kept_attention(pairs, head.value, near_best(pairs.scores, own.among(pairs), own.threshold))
