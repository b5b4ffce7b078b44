"""Chains for tests: blocks of a few bytes, each as it may be, so that every byte of a budget matters."""

from __future__ import annotations

from hypothesis import strategies as st

from suite.chain.chain import Chain, Stage


@st.composite
def chains(draw: st.DrawFn, most: int) -> Chain:
    """Chains of up to ``most`` unlike blocks; some graphs hold their block's input or output, others do not."""
    few, some, whether = st.integers(1, 9), st.integers(0, 20), st.booleans()
    stages: list[Stage] = []
    given = first = draw(few)
    for _ in range(draw(st.integers(1, most))):
        output, saved, gradient, run_s = draw(few), (draw(some), draw(some)), draw(some), draw(few)
        stages.append(
            Stage(
                run_s, run_s + draw(st.integers(0, 2)), draw(few), output, saved,
                run_peak_bytes=output + draw(some), save_peak_bytes=output + sum(saved) + draw(some),
                back_peak_bytes=given + gradient + draw(some), holds_input=draw(whether), holds_output=draw(whether),
                gradient_bytes=gradient,
            )
        )  # fmt: skip
        given = output
    return Chain(tuple(stages), first, draw(some), draw(some), 1.0, given + draw(some), draw(some))
