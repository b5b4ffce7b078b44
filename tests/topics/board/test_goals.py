"""The board's tables: a line a technique under the goal that it sells, seven cells, forms, verdicts, what stands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import MetricValue
from suite.judge.rows import Row, pairs
from suite.judge.statistics import Interval
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.record.schema import Line as Record
from suite.show.pages.board import leaning, reads_as_one
from suite.show.pages.cells import lean
from suite.topics.board import which_page
from suite.topics.board.goals import GoalLine, change, tables, tally
from suite.topics.board.pictures import costs
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing
from suite.topics.modelled_time import gpu_times
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from suite.topics.models.models_on_board import Shown as ShownModels
from suite.topics.models.tried_models import Cell, Model, ModelsMatrix
from tests.factories import counters, evidence, installed, records
from tests.show.samples import card, failing, on, shown, twins
from tests.show.samples import lean as small

LARGE = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
BASE = LARGE._replace(size="base", recipe="classic")


def counted(place: CountPlace, stack: str, reference: str = "baseline", **quantities: int) -> SizeCount:
    own = {"peak_tensor_bytes": 100, "flops": 100, "trainable_parameter_count": 100, "state_bytes": 100}
    own |= {"saved_activation_bytes": 100, "optimizer_state_bytes": 100} | quantities
    return SizeCount(place=place, stack=stack, reference=reference, code="c", quantities=own)


def time(ratio: float, half_width: float | None) -> GpuTimes:
    own = ModelledTime(
        place=LARGE, gpu="A100-80", stack="x", reference="baseline", step_s=1.0, ratio=ratio, half_width=half_width
    )
    return GpuTimes().with_newer(own)


def lines(report: Report) -> dict[str, GoalLine]:
    return {line.stack: line for table in tables(Standing.of(report)) for line in table.lines}


def selling(good: str, *names: str) -> dict[str, object]:
    return {name: card(name).model_copy(update={"sells": good}) for name in names}


def report(rows: Iterable[Row], good: str = "memory", *names: str, **fields: object) -> Report:
    return Report(list(rows), cards=selling(good, *(names or ("x",))), **fields)  # type: ignore[arg-type]


def test_a_line_has_what_it_saves_at_the_larger_size_and_the_modelled_step_with_its_band() -> None:
    counts = [
        counted(BASE, "baseline"),
        counted(BASE, "x", peak_tensor_bytes=90),
        counted(LARGE, "baseline"),
        counted(LARGE, "x", peak_tensor_bytes=50),
    ]
    own = report(shown(evidence("x")), paper_scale=CountsAtScale(PaperScale(counts=counts)), gpu_times=time(0.8, 0.25))
    line = lines(own)["x"]
    assert (line.saves.words, line.saves.form, line.saves.lean) == ("−50 %", "exact", 1)
    assert "gpt large, modern" in line.saves.title
    assert (line.step.words, line.step.ends, line.step.form) == ("×0.80", "[0.64, 1.00]", "modelled")
    assert line.quality.form == "measured" and re.fullmatch(r"\[[\d.]+, [\d.]+\]", line.quality.ends)
    assert str(line.verdict) == "helps" and line.works.words == line.others.words == ""


def test_the_table_of_a_goal_has_seven_columns_and_what_helps_first() -> None:
    rows = shown(
        small("saver", 2**20, pace_s=0.04), small("same", 2**22), small("lossy", 2**20, final=2.9), evidence("later")
    )
    cards = selling("memory", "saver", "same", "lossy") | selling("time", "later")
    memory, of_time = tables(Standing.of(Report(rows, cards=cards)))  # type: ignore[arg-type]
    assert len(memory.heads) == 7 and memory.heads[-1] == "verdict"
    verdicts = [(line.stack, line.verdict.word) for line in memory.lines]
    assert verdicts == [("saver", "helps"), ("same", "no difference"), ("lossy", "costs")]
    assert memory.tally() == "1 help, 1 cost, 1 no difference"
    assert [line.stack for line in of_time.lines] == ["later"] and of_time.heads[3] == "speedup at equal quality"


def test_over_ranks_it_is_the_state_at_the_most_of_them() -> None:
    counts = [
        counted(LARGE, "dp_ddp"),
        counted(LARGE, "x", "dp_ddp"),
        *(counted(BASE, f"dp_ddp:ranks={n}", "baseline") for n in (2, 64)),
        counted(BASE, "x:ranks=2", "dp_ddp:ranks=2", state_bytes=60),
        counted(BASE, "x:ranks=64", "dp_ddp:ranks=64", state_bytes=26),
    ]
    line = lines(report(shown(evidence("x")), paper_scale=CountsAtScale(PaperScale(counts=counts))))["x"]
    assert (line.saves.words, line.saves.note) == ("−74 %", "state, 64 ranks")


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.46, "−54 %"), (1.08, "+8 %"), (1.001, "0 %"), (0.002, "÷500"), (4, "×4.0")]
)
def test_a_ratio_reads_as_a_change(ratio: float, words: str) -> None:
    assert change(ratio) == words


def test_what_could_not_be_modelled_says_the_reason_to_a_pointer_and_is_empty() -> None:
    untimed = ModelledTime(place=LARGE, gpu="A100-80", stack="x", reference="baseline", unavailable="ranks on one link")
    line = lines(report(shown(evidence("x")), gpu_times=GpuTimes().with_newer(untimed)))["x"]
    assert (line.saves.words, line.step.words, line.step.title) == ("", "", "ranks on one link")


def test_what_learns_the_same_says_so_and_its_time_is_that_of_a_gpu_s_step() -> None:
    rows = shown(twins("x", points=[counters(flops=7)], pace_s=0.05))
    line = lines(report(rows, "time", gpu_times=time(0.8, 0.1)))["x"]
    assert line.quality_gain.exact and str(line.verdict) == "helps", "though it is later on this CPU"
    assert str(lines(report(rows, "time"))["x"].verdict) == "costs", "nothing else is known of its time"


def test_what_has_more_hardware_than_its_reference_is_not_said_to_help() -> None:
    rows = shown(evidence("x", points=[counters(peak_tensor_bytes=2**20, ranks=2)], pace_s=0.01))
    assert str(lines(report(rows))["x"].verdict) == "not known: it has 2 ranks against one"


def test_what_was_never_measured_has_a_line_and_its_reason() -> None:
    own = lines(Report(shown(evidence("y")), cards=selling("memory", "x") | selling("time", "y")))  # type: ignore[arg-type]
    assert str(own["x"].verdict) == "not known: not measured yet"
    failed = lines(report(shown(failing("x", "crashed", "no reason"))))["x"]
    assert str(failed.verdict) == "not known: crashed"


def test_a_variant_has_a_line_only_where_the_technique_itself_has_no_row() -> None:
    both = lines(report(shown(evidence("x"), evidence("x:k=2"))))
    assert list(both) == ["x"]
    assert list(lines(report(shown(evidence("x:k=2"))))) == ["x:k=2"]
    assert list(lines(Report(shown(evidence("x+y"), evidence("z"))))) == ["z"], "a stack is no technique"


def test_on_how_many_models_it_works() -> None:
    cells = {"a": Cell(verdict="works"), "b": Cell(verdict="refused", reason="no blocks")}
    matrix = ModelsMatrix(models={name: Model(baseline="gpt") for name in "ab"}, cells={"x": cells})
    line = lines(report(shown(evidence("x")), models=ShownModels(matrix)))["x"]
    assert line.works.words == "1 of 2" and "refuses 1" in line.works.title


def test_words_are_counted_in_the_order_of_the_rule() -> None:
    rows = shown(small("a", 2**20, final=2.9), small("b", 2**20), small("c", 2**22))
    table = tables(Standing.of(report(rows, "memory", "a", "b", "c")))[0]
    assert tally(line.verdict for line in table.lines) == "1 help, 1 cost, 1 no difference"


# what stands --------------------------------------------------------------------------------------------------------


def test_of_a_few_that_changed_nothing_stands() -> None:
    groups = [evidence(name, pace_s=0.01) for name in "xyz"]
    own = lines(report(shown(*groups, changed=["x"]), "time", *"xyz"))
    assert str(own["y"].verdict) == str(own["z"].verdict) == "helps"
    assert str(own["x"].verdict) == "not known: of older code: leantrain run verifies it"
    assert own["x"].quality.words == ""


def test_where_most_of_a_kind_changed_all_of_it_stands_and_a_sentence_says_so() -> None:
    groups = [evidence(name, pace_s=0.01) for name in "xyz"]
    standing = Standing.of(report(shown(*groups, changed=["x", "y"]), "time", *"xyz"))
    assert standing.lenient == {"learned", "timed"}
    assert standing.sentence.startswith("Code changed since most curves and timings were made")
    assert {str(line.verdict) for table in tables(standing) for line in table.lines} == {"helps"}


def test_no_older_version_of_a_baseline_stands() -> None:
    (old,) = shown(evidence("x", pace_s=0.01))
    older = Report([replace(old, newer_version=3)], cards=selling("time", "x"))  # type: ignore[arg-type]
    assert Standing.of(older).rows == [] and str(lines(older)["x"].verdict) == "not known: not measured yet"
    assert "No row is of today's version" in Standing.of(older).sentence


def test_one_recipe_and_size_stands_that_of_the_most_evidence() -> None:
    two = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    standing = Standing.of(Report(shown(two, on(evidence("fast", pace_s=0.04), size="micro"))))
    assert {row.conditions.size for row in standing.rows} == {"nano"} and standing.place.startswith("nano models")


# of rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "same"), [(1e-5, True), (2e-3, False)])
def test_what_reads_as_one_has_no_colour(change: float, same: bool) -> None:
    log = Interval(change, change - change / 9, change + change / 9, 0.95, "t", 3)
    value = MetricValue("measured", math.exp(change), log)
    assert reads_as_one(value) == same and leaning(value) == -1
    assert lean(value, "lower") == ("" if same else "worse")


def test_a_mechanism_that_never_acted_has_no_quality_and_no_verdict() -> None:
    def of(share: float) -> Row:
        own: list[Record] = evidence("x", pace_s=0.03, probes={"x.share": share})
        (row,) = pairs(records(own), lambda stack: "baseline", installed, active=lambda stack: ("x.share",))
        return row

    idle, busy = of(0.0), of(0.1)
    assert busy.inactive == "" and str(lines(report([busy], "time"))["x"].verdict) == "costs"
    assert idle.inactive.startswith("x.share is 0")
    assert str(lines(report([idle], "time"))["x"].verdict) == "not known: not exercised"
    qualities = [idle.value(name) for name in ("time_to_quality", "equivalent_budget", "loss", "final.accuracy")]
    assert all(each.kind == "unavailable" and each.reason.startswith("not exercised") for each in qualities)
    assert idle.value("step_time").kind == "measured" and any("not exercised" in note for note in idle.notes)


def test_modelled_times_are_kept_whole_and_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    assert gpu_times.read(tmp_path) == GpuTimes()
    gpu_times.write(time(0.8, 0.1), tmp_path)
    kept = gpu_times.read(tmp_path)
    newer = kept.times[0].model_copy(update={"ratio": 0.7})
    assert kept == time(0.8, 0.1) and [each.ratio for each in kept.with_newer(newer).times] == [0.7]
    assert kept.only(["y"], ()).times == [] and len(kept.only(["x"], ["gpt"]).times) == 1
    (tmp_path / gpu_times.NAME).write_text("{")
    with pytest.raises(ValueError, match="leantrain count --keep --gpu"):
        gpu_times.read(tmp_path)


def test_the_page_of_which_to_take_has_bytes_a_parameter_steps_and_trials() -> None:
    counts = [
        counted(LARGE, "baseline", state_bytes=1600),
        counted(LARGE, "x", state_bytes=400, saved_activation_bytes=25),
    ]
    counts = [each.model_copy(update={"quantities": each.quantities | {"parameter_count": 100}}) for each in counts]
    tried = ModelsMatrix(
        models={"llama": Model(baseline="gpt", kind="llama")}, cells={"x": {"llama": Cell(verdict="works")}}
    )
    own = report(
        shown(evidence("x")),
        paper_scale=CountsAtScale(PaperScale(counts=counts)),
        gpu_times=time(0.8, 0.25),
        models=ShownModels(tried),
    )
    standing = Standing.of(own)
    said = which_page.content(standing)
    assert said["models"] == ["llama"] and said["gpus"] == [["A100-80", 80]]
    ((goal, stack, _, verdict, _, quality, plain, left, activations, steps, trials),) = said["rows"]  # type: ignore[misc]
    assert (goal, stack, verdict) == ("memory", "x", lines(own)["x"].verdict.word)
    assert quality.startswith("×") and quality.endswith("]")
    assert (plain, left, activations, trials) == (16, 4, 0.25, [0])
    assert steps == {"A100-80": pytest.approx([0.8, 0.64, 1.0])}
    assert "Which should I take?" in which_page.render(standing)


def test_what_has_more_hardware_than_its_reference_is_no_point_of_the_picture() -> None:
    counts = [counted(LARGE, "baseline"), counted(LARGE, "x", peak_tensor_bytes=50)]
    own = report(shown(evidence("x")), paper_scale=CountsAtScale(PaperScale(counts=counts)), gpu_times=time(0.8, 0.25))
    (table,) = tables(Standing.of(own))
    assert [point.name for point in costs([table])[1]] == ["x"]
    (line,) = table.lines
    assert not line.has_more_hardware
    assert costs([replace(table, lines=[replace(line, has_more_hardware=True)])]) == ("", [])
