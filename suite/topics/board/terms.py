"""Has the words of the board: ten at most, each with the sentence that a pointer is told and the legend repeats."""

from __future__ import annotations

from collections.abc import Mapping

FORMS: Mapping[str, str] = {
    "exact": "counted, without noise: one step, or every run, on tensors that need have no values",
    "measured": "run here in pairs; [a, b] is a 95 % interval",
    "modelled": "computed from a step's operators for a named GPU, never measured; [a, b] is the band that 9 of 10 "
    "published ratios kept",
    "by others": "published elsewhere at the named size, not repeated here",
}
"""Where a value comes from, by the form that it is written in: the legend's lines."""

TERMS: Mapping[str, str] = {
    **FORMS,
    "reference": "what a technique is compared with: the same model, data and recipe without it",
    "paper's size": "a model as large as papers train, GPT-2 of 355M parameters where it can be; counted, not run",
    "quality here": "how long the reference would have to train to end at the same loss, over its own length: ×1 is as "
    "good; the mean over the small models trained here",
    "speedup at equal quality": "how much sooner than its reference a technique ends at the same test loss, set-up "
    "included, on the small models trained here",
    "works on": "on how many of the tiny models that it was tried on it attaches, trains and changes what it should",
    "verdict": "helps: surely saves what it sells, at no surely worse quality; costs: surely takes more, or ends "
    "worse; no difference: within the range named; not known: the reason",
}


def meaning(head: str) -> str:
    """Returns the sentence on the term that a table's head is, or ends with; empty where it is none."""
    return next((said for term, said in TERMS.items() if head.endswith(term)), "")
