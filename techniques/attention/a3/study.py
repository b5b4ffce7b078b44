"""A3's numbers: what is quoted of its chip, what is modelled of it, and what its search takes on this machine."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from suite.measure.lab import Lab, StudyTable
from techniques.attention.a3.chip import TOKENS, modelled
from techniques.attention.a3.technique import A3, near_best
from techniques.attention.shared.kept_pairs import kept_attention
from techniques.attention.shared.skipping import Head, as_it_is, drawn, drift_here, traces
from techniques.shared.chips.numbers import numbers, quoted


def study(lab: Lab) -> list[StudyTable]:
    """The table ``numbers``."""
    lab.progress(0.0, "searching")
    head = drawn(TOKENS)
    searched = as_it_is(f"search in its batched form and attention, {TOKENS} tokens", head, lambda: approximated(head))
    rows = [*quoted(Path(__file__).parent), *modelled(traces(lab, "a3")), searched, drift_here(TOKENS)]
    return [numbers(rows)]


def approximated(head: Head) -> Tensor:
    own, pairs = A3(), head.pairs
    return kept_attention(pairs, head.value, near_best(pairs.scores, own.among(pairs), own.threshold))
