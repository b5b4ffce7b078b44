"""What one of several ranks that share a layer keeps, by hand."""

from __future__ import annotations

from dataclasses import replace

from research.published_steps.published_rows import Case
from research.published_steps.published_traces import traced

CASE = Case("rank", "llama", 2, 64, 4, 32, 4, 4, 48, 80, parameters="bfloat16", tensor_ranks=4)


def test_a_rank_keeps_its_part_of_what_is_gathered() -> None:
    """What a product read of others is gathered again: so of all that a layer keeps a rank has its part (and a state of
    attention's random numbers, which all have)."""
    of_one, of_four = (traced(replace(CASE, tensor_ranks=ranks)) for ranks in (1, 4))
    assert of_four.step is not None and not of_four.why_not
    assert 0 <= 4 * of_four.layer_bytes - of_one.layer_bytes < 256
    assert of_four.peak_bytes < of_one.peak_bytes / 2
