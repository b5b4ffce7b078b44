"""Chains for tests: unlike blocks of a few bytes, so that every byte of a budget matters."""

from __future__ import annotations

from hypothesis import strategies as st

from suite.chain.chain import Chain, Stage


@st.composite
def chains(
    draw: st.DrawFn, least: int = 1, most: int = 4, alike: bool = False, held: bool = True, any_ends: bool = False
) -> Chain:
    """Chains of ``least`` to ``most`` blocks, ``alike`` or not. Graphs hold their block's input and not its output;
    some not the input where ``held`` is false, and with ``any_ends`` each holds either, both or none."""
    depth = draw(st.integers(least, most))
    few, some = st.integers(1, 9), st.integers(0, 20)

    def stage(given: int) -> Stage:
        output, saved, gradient = draw(few), draw(st.tuples(some, some)), draw(some)
        return Stage(
            run_s=(run := draw(few)),
            save_s=run + draw(st.integers(0, 2)),
            back_s=draw(few),
            output_bytes=output,
            saved_bytes=saved,
            run_peak_bytes=output + draw(some),
            save_peak_bytes=output + sum(saved) + draw(some),
            back_peak_bytes=gradient + given + draw(some),
            holds_input=(held and not any_ends) or draw(st.booleans()),
            holds_output=any_ends and draw(st.booleans()),
            gradient_bytes=gradient,
        )

    first = draw(few)
    stages = [stage(first)]
    while len(stages) < depth:
        stages.append(stages[0] if alike else stage(stages[-1].output_bytes))
    last = stages[-1].output_bytes
    return Chain(tuple(stages), first, draw(some), draw(some), 1.0, last + draw(some), draw(some))
