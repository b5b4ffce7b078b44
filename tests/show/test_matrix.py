"""The matrix's model: what stands in which group, what is best of a column, and what a mean over baselines says."""

import math

import pytest

from suite.show.pages.matrix import matrix, scope, standing
from tests.factories import counters, evidence, row
from tests.show.samples import failing, lean, on, shown, twins


def several():
    """The reference's peak is 2**22 bytes."""
    lines = [
        *lean("fast", 2**22, pace_s=0.01),
        *lean("faster", 2**23, pace_s=0.005),
        *lean("small", 2**20, pace_s=0.04),
        *lean("smaller", 2**19, pace_s=0.06),
        *lean("useless", 2**22, pace_s=0.03),
        *lean("worst", 2**22, pace_s=0.09),
        *lean("same", 2**22),
    ]
    return shown(lines, failing("broken", "crashed", "no reason"))


def test_techniques_stand_in_groups_of_what_they_save_and_each_in_one():
    groups = {title: [each.stack for each in entries] for title, entries in matrix(several()).groups}
    assert groups == {
        "Time: sooner at the same quality": ["faster", "fast"],
        "Memory": ["small", "smaller"],
        "Saves none of these, as far as is known": ["same", "useless", "worst", "broken"],
    }


def test_each_column_has_its_best_for_time_and_memory_and_one_that_does_not_help():
    (answer,) = matrix(several()).answers
    assert [row.stack for row in answer.time] == ["faster", "fast"]
    assert answer.memory and answer.memory.stack == "smaller"
    assert answer.no_help and answer.no_help.stack == "worst"


def test_what_only_splits_its_work_over_ranks_saves_no_memory():
    split = evidence("split", points=[counters(peak_tensor_bytes=2**20, ranks=2)], pace_s=0.04)
    shared = matrix(shown(split, lean("small", 2**21, pace_s=0.04)))
    (answer,) = shared.answers
    assert answer.memory and answer.memory.stack == "small"
    (entry,) = (each for each in shared.entries if each.stack == "split")
    assert entry.saves == "split"
    assert entry.sentence == "On two cores against one: later on gpt; 0.25 of the memory on each rank."


def test_sooner_on_more_hardware_stands_apart_from_better():
    lines = evidence("split", points=[counters(ranks=2)], pace_s=0.01)
    whole = matrix(shown(lines, evidence("slow", pace_s=0.04)))
    (entry,) = (each for each in whole.entries if each.stack == "split")
    assert entry.verdicts == ("sooner on more hardware",) and entry.balance == 0
    assert entry.sentence.startswith("On two cores against one: sooner on gpt")
    assert [title for title, entries in whole.groups if entry in entries] == ["On more hardware than the reference"]
    assert not whole.answers[0].time and whole.answers[0].decided
    assert whole.tally == "0 better, 1 worse, 0 undecided, 0 failed, 1 sooner on more hardware"
    assert "hardware" not in matrix(shown(evidence("slow", pace_s=0.04))).tally


def test_where_nothing_is_decided_no_answer_is_invented():
    (answer,) = matrix(shown(evidence("x", replicates=0))).answers
    assert not answer.time and answer.memory is None and answer.no_help is None and not answer.decided


def test_the_mean_is_geometric_with_an_interval_and_only_where_every_column_has_one():
    fast = evidence("fast", pace_s=0.01)
    both = matrix(shown(fast, on(evidence("fast", pace_s=0.02), baseline="vit"))).entries[0]
    values = [each.value("time_to_quality") for each in both.best.values()]
    mean = both.mean
    assert mean is not None and mean.log is not None
    assert mean.number == pytest.approx(math.sqrt(values[0].number * values[1].number))
    widths = [each.log.half_width for each in values]
    assert mean.log.half_width == pytest.approx(math.hypot(*widths) / 2)
    assert matrix([row("fast")]).entries[0].mean is None
    unlearned = on(evidence("fast", seeds=0), baseline="vit")
    assert matrix(shown(fast, unlearned)).entries[0].mean is None


def test_the_scope_says_of_what_all_of_it_is():
    words = scope([row("x")])
    assert words.startswith("Scope: nano models trained for 200 steps on the CPU; rates as given.")


def test_a_control_is_neither_sooner_nor_later():
    """Two sides that do the same: the faster timings are chance."""
    same = twins("twin", pace_s=0.01)
    (sooner,), (twin,) = matrix(shown(evidence("twin", pace_s=0.01))).entries, matrix(shown(same)).entries
    assert (sooner.saves, twin.saves) == ("time", "control")
    assert twin.sentence == "A control, which does what its reference does, on gpt."
    assert not matrix(shown(same)).answers[0].time and twin.balance == 0
    (row_of_twin,) = shown(same)
    assert any(note.startswith("a control:") for note in row_of_twin.notes)


def test_a_sentence_over_several_sizes_says_which():
    lines = [*evidence("x", pace_s=0.01), *on(evidence("x", pace_s=0.09), size="micro")]
    (entry,) = matrix(shown(lines)).entries
    assert entry.answer == "Sooner on gpt nano; later on gpt micro"


def test_the_first_sentence_says_of_what_models_and_what_carries_over():
    words = standing([row("x")])
    size = counters().parameter_count / 1e6
    assert words.startswith(f"All rows are of models of {size:.1f} to {size:.1f} million parameters, with one CPU core")
    assert words.endswith("times and quality are of these models, and say little of larger ones.")
    assert "with a GPU for" in standing(shown(on(evidence("x"), device="cuda")))
