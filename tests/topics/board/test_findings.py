"""Every sentence of the findings is derived from records: here by other code, and again from the committed ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.judge.claims import VerdictBasis, judge
from suite.record.paper_scale import PaperScale
from suite.record.text import in_markdown
from suite.topics.board import html
from suite.topics.board.board_findings import RULES, BoardFinding, Name, findings
from suite.topics.board.goals import tables
from suite.topics.board.markdown import CLOSING, OPENING, finding_lines, with_findings
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from tests.factories import between, claim, evidence
from tests.show.samples import lean, shown, twins
from tests.topics.board.test_goals import LARGE, counted, selling

ROOT = Path(__file__).parents[3]


def found(report: Report) -> dict[str, BoardFinding]:
    standing = Standing.of(report)
    return {one.rule: one for one in findings(tables(standing), standing)}


def step(stack: str, ratio: float, half_width: float | None = 0.1) -> ModelledTime:
    return ModelledTime(
        place=LARGE, gpu="A100-80", stack=stack, reference="baseline", step_s=1.0, ratio=ratio, half_width=half_width
    )


def of_memory() -> Report:
    """Two halve the peak, the larger saving at the longer step; one saves a little for nothing; one learns worse."""
    peaks = {"baseline": 100, "half": 48, "quarter": 25, "free": 88, "worse": 10}
    times = [step("half", 1.2), step("quarter", 1.9), step("free", 0.97), step("worse", 1.0)]
    counts = [counted(LARGE, name, peak_tensor_bytes=peak, parameter_count=355_000_000) for name, peak in peaks.items()]
    names = ("half", "quarter", "free")
    rows = [row for lines in (*map(twins, names), evidence("worse", final=2.9)) for row in shown(lines)]
    return Report(
        rows,
        cards=selling("memory", *names, "worse"),  # type: ignore[arg-type]
        paper_scale=CountsAtScale(PaperScale(counts=counts)),
        gpu_times=GpuTimes(times=times),
    )


def test_half_the_memory_is_the_least_step_of_what_halves_it() -> None:
    said = found(of_memory())["halves_memory"].words
    assert said == (
        "Half the memory: half takes 52 % off the peak of gpt of 355M (exact), for a step of ×1.20 [1.09, 1.32] on an "
        "A100 (modelled), and learns what its reference does."
    )


def test_free_is_what_takes_no_longer_step() -> None:
    said = found(of_memory())["is_free"].words
    assert "free (−12 %, step ×0.97)" in said and "half (" not in said and "worse (" not in said


def test_cheap_fine_tuning_is_the_smallest_peak_and_says_when_its_quality_is_not_known() -> None:
    counts = [
        counted(LARGE, "baseline", trainable_parameter_count=1000),
        counted(LARGE, "a", trainable_parameter_count=1, peak_tensor_bytes=80),
        counted(LARGE, "b", trainable_parameter_count=10, peak_tensor_bytes=70),
    ]
    cards = selling("trainable parameters", "a", "b")
    report = Report(
        shown(evidence("a", seeds=0), evidence("b", seeds=0)),
        cards=cards,  # type: ignore[arg-type]
        paper_scale=CountsAtScale(PaperScale(counts=counts)),
    )
    said = found(report)["tunes_cheaply"].words
    assert said.startswith(
        "Cheap fine-tuning: b trains one in 100 of the parameters of gpt and changes the peak by −30 %"
    )
    assert said.endswith("quality here: not known: the reference's scaling curve was not learned here.")


def test_sooner_here_is_only_what_surely_is_the_largest_first() -> None:
    rows = shown(evidence("fast", pace_s=0.01), evidence("faster", pace_s=0.005), evidence("same"))
    said = found(Report(rows, cards=selling("time", "fast", "faster", "same")))["ends_sooner"].words  # type: ignore[arg-type]
    numbers = re.search(r"Sooner here: faster ×([\d.]+) \[.*?\], fast ×([\d.]+) \[.*?\], of 3 techniques", said)
    assert numbers and float(numbers[1]) > float(numbers[2]) > 1
    none = found(Report(shown(evidence("same")), cards=selling("time", "same")))["ends_sooner"].words  # type: ignore[arg-type]
    assert (
        none == "Sooner here: none of 1 techniques with a speedup at equal quality, on nano models, is surely above ×1."
    )


def test_claims_are_counted_once_whatever_the_number_of_baselines() -> None:
    half, more = claim(id="half", read="Table 1"), claim(id="more", read="Table 1", expected=1.0, relation="<=")
    near = {"size": "large"}
    judged = [judge(half, "x", between(0.7, 0.75), VerdictBasis(name, **near)) for name in ("gpt", "bert", "vit")]
    judged += [judge(more, "x", between(0.7, 0.75), VerdictBasis("gpt", **near))]
    judged += [judge(half, "y", between(1.2, 1.3), VerdictBasis("gpt", **near))]
    said = found(Report(shown(evidence("x")), verdicts=judged))["did_not_hold"].words
    assert said == (
        "Papers' claims: 2 claims hold near their paper's setting, 1 of which say by how much; 1 do not (y.half)."
    )


def test_together_is_of_stacks_measured_beside_their_parts() -> None:
    rows = shown(evidence("a", pace_s=0.01), evidence("b"), evidence("a+b", pace_s=0.005))
    assert "parts, a+b ends surely sooner" in found(Report(rows))["helps_together"].words
    assert "helps_together" not in found(Report(shown(evidence("a"))))


def test_how_sure_counts_verdicts_and_the_controls_that_look_different() -> None:
    rows = [*shown(twins("twin", pace_s=0.01)), *shown(lean("small", 2**20))]
    said = found(Report(rows, cards=selling("memory", "small", "twin")))["is_sure"].words  # type: ignore[arg-type]
    assert said.startswith("How sure: 1 help, 1 no difference; half of the speedups would have shown a change of 2.")
    assert "of 1 controls, the reference by another name, 1 look different, 100 % [3, 100] where 5 % is meant" in said


def test_without_records_there_is_nothing_to_say() -> None:
    assert found(Report()) == {}
    assert with_findings("", Report(), "").strip() == ""


def test_a_readme_keeps_all_else_and_one_without_a_place_is_refused() -> None:
    text = f"# mine\n\n{OPENING}\nold\n{CLOSING}\nend\n"
    new = with_findings(text, of_memory(), "boards")
    assert new.startswith("# mine\n") and new.endswith(f"{CLOSING}\nend\n") and "old" not in new
    assert "**Half the memory:** `half` takes 52 % off" in new and "(boards/memory-and-step.svg)" in new
    assert with_findings(new, of_memory(), "boards") == new
    with pytest.raises(ValueError, match="write the two lines"):
        with_findings("# mine\n", of_memory(), "boards")


# the committed records ----------------------------------------------------------------------------------------------


@cache
def committed() -> Report:
    return Report.read(ROOT / "results")


def written(page: str) -> list[str]:
    """The findings of a page, without their links."""
    lines = re.findall(r"^- \*\*[^*]+:\*\* .*$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return [re.sub(r" \(\[evidence\]\([^)]*\)\)$", "", line) for line in lines]


def test_readme_front_page_and_site_say_what_the_records_say() -> None:
    """Where these differ, the boards are older than the records: make evidence draws them."""
    said = listed(committed())
    assert 5 <= len(said) <= 8 == len(RULES)
    assert written("README.md") == written("leaderboard.md") in (listed(committed()), listed(as_verified()))


def listed(report: Report) -> list[str]:
    standing = Standing.of(report)
    return [line for line in finding_lines(findings(tables(standing), standing)) if line.startswith("- ")]


def as_verified() -> Report:
    """The committed records as they were when the boards were drawn: code that changed since takes none away."""
    rows = [replace(row, unverified=()) for row in committed().rows]
    counts = replace(committed().paper_scale, changed=frozenset())
    return replace(committed(), rows=rows, paper_scale=counts)


def test_the_numbers_of_what_halves_memory_are_those_of_the_files() -> None:
    """By other code, from the files themselves."""
    (line,) = [line for line in written("README.md") if "Half the memory" in line]
    name, percent, low, high = re.search(  # type: ignore[union-attr]
        r"`(\w+)` takes (\d+) % off .*? step of ×[\d.]+ \\\[([\d.]+), ([\d.]+)\\\]", line
    ).groups()
    kept = json.loads((ROOT / "results/paper_scale.json").read_text("utf-8"))["counts"]
    peaks = {
        count["stack"]: count["quantities"]["peak_tensor_bytes"]
        for count in kept
        if count["place"] == ["gpt", "large", "modern", "cuda", "pretrain"] and count["quantities"]
    }
    assert round(100 * (1 - peaks[name] / peaks["baseline"])) == int(percent) >= 50
    times = json.loads((ROOT / "results/gpu_times.json").read_text("utf-8"))["times"]
    (own,) = [time for time in times if (time["stack"], time["gpu"], time["place"][0]) == (name, "A100-80", "gpt")]
    width = 1 + own["half_width"]
    assert (f"{own['ratio'] / width:.2f}", f"{own['ratio'] * width:.2f}") == (low, high)


def test_fewer_than_sixty_words_stand_before_the_first_number() -> None:
    page = html.render(committed()).partition("<body>")[2]
    readme = (ROOT / "README.md").read_text("utf-8")
    for text in (re.sub(r"<[^>]+>", " ", page), re.sub(r"!\[[^]]*\]\([^)]*\)|<!--.*?-->", " ", readme)):
        assert len(re.split(r"\d", text, maxsplit=1)[0].split()) <= 60


def test_a_sentence_in_markdown_keeps_its_spaces() -> None:
    one = BoardFinding("rule", "Title", [Name("x"), " takes ", Name("y"), ", and more."], "here")
    assert list(finding_lines([one]))[-1] == "- **Title:** `x` takes `y`, and more."
    assert in_markdown(" a ") == "a"
