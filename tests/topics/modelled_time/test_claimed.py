"""Claims about a step's time beside a modelled one: inside, apart, or not to be told."""

from __future__ import annotations

from html import unescape

import pytest

from suite.entries.card import Claim
from suite.entries.catalogue import catalogue
from suite.record.placed import CountPlace
from suite.show.pages.rendered import as_html
from suite.topics.modelled_time.claimed import AGREES, DISAGREES, beside_model
from suite.topics.modelled_time.gpu_time_on_page import section
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime

AT = CountPlace("gpt", "large", "modern", "cuda", "pretrain")


def claim(relation: str, expected: float, **more: object) -> Claim:
    return Claim(
        id="faster",
        statement="It is faster",
        read="Table 1",
        metric="step_time",
        scope="step",
        kind="measured",
        expected=expected,
        relation=relation,
        **more,
    )  # type: ignore[arg-type]


def time(ratio: float | None, half_width: float | None = None, **more: object) -> ModelledTime:
    own = {"place": AT, "gpu": "H100-SXM", "stack": "lora", "reference": "baseline", "step_s": ratio and 0.1}
    return ModelledTime(**(own | {"ratio": ratio, "half_width": half_width} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("relation", "expected", "ratio", "half_width", "words"),
    [
        ("<=", 0.8, 0.6, 0.3, AGREES),
        ("<=", 0.8, 0.7, 0.3, "cannot tell (±30%)"),
        ("<=", 0.8, 1.2, 0.3, DISAGREES),
        (">=", 1.2, 2.0, 0.3, AGREES),
        ("==", 1.0, 1.1, 0.2, "cannot tell (±20%)"),
        ("==", 1.0, 1.0, None, AGREES),
        ("<", 1.0, 1.0, None, DISAGREES),
        ("==", 2.0, 1.0, 0.5, DISAGREES),
    ],
)
def test_words(relation: str, expected: float, ratio: float, half_width: float | None, words: str) -> None:
    (found,) = beside_model([claim(relation, expected)], [time(ratio, half_width)])
    assert found.words == words


def test_what_is_of_other_steps_or_not_modelled_stands_beside_nothing() -> None:
    others = [claim("<=", 0.8, settings="rank=4"), claim("<=", 0.8, against="lion"), claim("<=", 2.0, absolute=True)]
    assert beside_model(others, [time(0.5, 0.1)]) == []
    assert beside_model([claim("<=", 0.8)], [time(None, unavailable="it reads values")]) == []


def test_a_page_says_that_it_is_modelled_with_its_band_and_why_it_is_not() -> None:
    card = catalogue()["lora"].card
    times = [time(0.5, 0.25), time(None, gpu="A100-80", unavailable="it reads values")]
    page = unescape(as_html(section(card, GpuTimes(times=times))))
    assert "≈0.50" in page and "[0.40, 0.62]" in page and "it reads values" in page
    assert "never measured" in page and "better" not in page and "worse" not in page
    assert f"{AGREES}, on H100-SXM" in page
    assert section(card, GpuTimes()) is None
