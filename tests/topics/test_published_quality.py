"""What others published of quality at scale: read whole, judged as statistics say, shown with its unit and source."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats
from typer.testing import CliRunner

from suite.cli import app
from suite.entries.catalogue import catalogue
from suite.judge.statistics import Interval
from suite.topics.published_quality.judged_quality import QualityByOthers, judged, quality_by_others
from suite.topics.published_quality.quality_on_page import section, sentence
from suite.topics.published_quality.quality_rows import PublishedQuality, quality_by_technique, quality_rows


def test_every_row_is_what_it_is_annotated_to_be_and_has_a_source() -> None:
    rows = quality_rows()
    check = TypeAdapter(PublishedQuality)
    for row in rows:
        check.validate_python(asdict(row))
        assert row.technique in catalogue() and row.source and row.model and row.metric
        assert (row.budget_ratio is None) == (row.unit == "") == (row.how == ""), row
    assert len(rows) == 405 and len(quality_by_technique()) == 66
    assert sum(known.at_scale != [] for known in map(quality_by_others, quality_by_technique()) if known) == 45


def of(table: str, technique: str) -> list[PublishedQuality]:
    return [row for row in quality_rows() if row.table == table and row.technique == technique]


def test_seeds_give_the_interval_that_welch_gives() -> None:
    row = of("modded_nanogpt", "fp8_hybrid")[1]
    one = judged(row)
    theirs = stats.ttest_ind_from_stats(3.27825, 0.0020, 13, 3.27837, 0.0014, 13, equal_var=False)
    assert one.gain is not None
    ratio = one.gain.estimate / one.gain.standard_error
    assert abs(ratio) == pytest.approx(abs(theirs.statistic), rel=1e-6)
    assert 2 * stats.t.sf(abs(ratio), one.gain.degrees_of_freedom) == pytest.approx(theirs.pvalue, rel=1e-6)
    assert one.word == "no difference shown" and one.basis == "Welch, 13 against 13 runs"
    assert 0.001 < one.detectable < 0.003
    averaged = judged(of("modded_nanogpt", "lawa")[0])
    assert averaged.word == "better" and averaged.gain is not None and averaged.gain.low > 0.002


def test_medians_with_ranges_are_judged_as_often_right_as_they_say() -> None:
    draws = np.sort(np.random.default_rng(0).normal(100.0, 5.0, (2, 4000, 5)))
    ends = draws[..., [0, 2, 4]].round(3)
    template = next(row for row in of("algoperf_lawa", "lawa") if row.value and row.scale == "transformer")
    held = 0
    for (low, value, high), (low_reference, reference, high_reference) in zip(*ends[:, :300].tolist(), strict=True):
        said = f"range {low}-{high} against {low_reference}-{high_reference}"
        one = judged(replace(template, value=value, value_reference=reference, uncertainty=said))
        held += one.gain is not None and one.gain.contains(0.0)
    assert 0.92 <= held / 300 <= 0.99
    vit = judged(template)
    assert vit.basis == "Welch, by ranges of 5 against 5 runs" and vit.word == "better" and 500 < vit.detectable < 5000


def test_one_run_that_says_nothing_of_its_scatter_is_not_judged() -> None:
    one = judged(of("torchao", "fp8_hybrid")[0])
    assert one.word == "not judged" and one.sign == 1 and one.detectable == math.inf


def test_budgets_off_a_published_curve_are_the_sources() -> None:
    """Marin's table interpolates the losses, the ruler their logarithms: alike to 1 % between the curve's ends. Two
    cells lie beyond them, where the one goes on along the last piece, the other along the whole curve."""
    lion = [row for row in of("marin_optimizers", "lion") if row.budget_ratio]
    assert len(lion) == 12
    for row in lion:
        own = judged(row).budget
        assert own is not None and own.estimate == pytest.approx(row.budget_ratio, rel=0.035), row.budget
        assert own.low < own.estimate < own.high
    off = [abs(judged(row).budget.estimate / row.budget_ratio - 1) for row in lion]  # type: ignore[union-attr, operator]
    assert sum(each < 0.015 for each in off) >= 10


def test_a_metric_that_is_a_budget_is_a_ratio_of_means_with_the_interval_of_both() -> None:
    row = of("mlperf_rcp", "lamb")[1]
    one = judged(row)
    random = np.random.default_rng(1)
    ours = random.normal(row.value or 0, row.sd or 0, (20_000, row.seeds or 0)).mean(1)
    theirs = random.normal(row.value_reference or 0, row.sd_reference or 0, (20_000, row.seeds_reference or 0)).mean(1)
    low, high = np.quantile(theirs / ours, [0.025, 0.975])
    assert one.budget is not None and one.unit == "samples"
    assert one.budget.estimate == pytest.approx(row.budget_ratio, rel=1e-3)
    assert math.log(one.budget.high / one.budget.low) == pytest.approx(math.log(high / low), rel=0.08)
    assert one.word == "worse"


def test_a_side_that_nobody_tuned_is_left_out_where_others_are() -> None:
    known = quality_by_others("lora")
    assert known is not None and {one.row.table for one in known.at_scale} == {"small_batch"}
    assert {one.row.tuned for one in known.every} == {"no", "yes"}


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.95, "", 3)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ([], "no row here"),
        ([interval(0.8, 1.2)], "undecided here"),
        ([interval(1.1, 1.2), interval(0.9, 1.3)], "agrees in direction"),
        ([interval(0.5, 0.9)], "opposite direction here"),
        ([interval(0.5, 0.9), interval(1.1, 1.2)], "rows here differ among themselves"),
    ],
)
def test_rows_here_agree_or_do_not(here: list[Interval], said: str) -> None:
    known = quality_by_others("sam")  # better in each of its rows at scale
    assert known is not None and known.direction == 1 and known.agrees(here) == said


def test_without_a_row_at_scale_nothing_is_said_at_scale() -> None:
    known = quality_by_others("dgc")
    assert known is not None and known.words == ""
    assert sentence(known).startswith("Nothing is published on a Transformer")
    assert quality_by_others("zero1") is None and section(catalogue()["zero1"].card) is None
    assert QualityByOthers("none", ()).agrees([]) == "nothing published at scale"


def test_a_page_says_unit_size_tuning_and_source() -> None:
    drawn = section(catalogue()["lion"].card)
    assert drawn is not None
    text = repr(drawn.parts)
    assert "marin-community/marin" in text and "both sides" in text and "tokens" in text and "134M" in text
    assert "leantrain published lion" in text


def test_the_command_finds_a_technique_by_its_name_and_says_which_are_near() -> None:
    run = CliRunner()
    assert "tokens" in run.invoke(app, ["published"]).output
    rows = json.loads(run.invoke(app, ["published", "lion", "--json"]).output)["lion"]
    assert len(rows) == 33 and {row["word"] for row in rows} >= {"worse", "not judged"}
    assert "did you mean lion" in run.invoke(app, ["published", "liom"]).output
    assert "Nothing that others published" in run.invoke(app, ["published", "zero1"]).output
