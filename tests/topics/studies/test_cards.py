"""What cards say of shared studies: it can be built and run, and a bad range is refused when the card is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.entries.card import CardError, LinkSweep, read_card
from suite.entries.catalogue import Entry, catalogue
from suite.entries.scaffold import CARD
from suite.entries.spelling import build
from suite.record.job import Setting, canonical
from suite.record.schema import Counted, Learned
from suite.topics.studies.lab import Lab
from suite.topics.studies.study import CardStudy, study_of

HAVING = [entry for entry in catalogue().values() if entry.card.study]
OF_RUNS = [entry for entry in HAVING if not isinstance(entry.card.study, LinkSweep)]


@pytest.mark.parametrize("entry", OF_RUNS, ids=lambda entry: entry.id)
def test_every_stack_that_a_card_asks_for_can_be_built(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def runs(self: Lab, stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        asked.extend(stacks)
        return {canonical(stack): [] for stack in stacks}

    def counts(self: Lab, stacks: list[str]) -> dict[str, Counted]:
        return {}

    monkeypatch.setattr(Lab, "runs", runs)
    monkeypatch.setattr(Lab, "counts", counts)
    monkeypatch.setattr("suite.topics.studies.label_noise.written", lambda data, share, folder: folder)
    question = study_of(entry)
    assert isinstance(question, CardStudy)
    question.own = None  # its runs are not through the lab
    question.study(Lab(Setting(baseline=question.BASELINES[0]), Path("nowhere"), seeds=1, minutes=1.0))
    for stack in asked:
        build(stack)
    assert any(entry.id in stack for stack in asked)


def test_tables_of_the_card_come_before_those_of_the_techniques_own_study_which_plots_all() -> None:
    entry = SimpleNamespace(
        card=SimpleNamespace(study=SimpleNamespace(name="rate_grid", baselines=()), baselines=("a",))
    )
    own = SimpleNamespace(study=lambda lab: ["its own"], plot=lambda tables: tables)
    question = CardStudy(entry, own)  # type: ignore[arg-type]
    question.shared = SimpleNamespace(study=lambda lab, asked: ["shared"])  # type: ignore[assignment]
    assert question.study(None) == ["shared", "its own"]  # type: ignore[arg-type, comparison-overlap]
    assert question.plot(["shared"]) == ["shared"]  # type: ignore[comparison-overlap, list-item]
    assert question.BASELINES == ("a",)


SWEEP = """
[study]
name = "batch_sweep"
scaled = "scaling:k={batch},rate={rate:g}"
rule = "sqrt"
batches = [1, 4]
rates = [0.5, 1.0]
optimizers = ["idea"]
"""
GRID = """
[study]
name = "rate_grid"
reference = "AdamW"
reference_scaled = "scaling:k={batch},rate={rate}"
scaled = "scaling:k={batch}"
rates = [0.3, 1.0]

[[study.contender]]
label = "Idea"
stacks = { "1/3" = "idea:factor=3", "1" = "idea" }
"""
NOISE = """
[study]
name = "label_noise"
shares = [0.0, 0.3]
reference = "idea:strength=0"
stacks = { idea = "idea" }
"""


@pytest.mark.parametrize(
    ("study", "old", "new", "message"),
    [
        (SWEEP, "batch_sweep", "batch_swipe", "study: Input tag 'batch_swipe'"),
        (SWEEP, "[1, 4]", "[0, 4]", "batches.0: Input should be greater than or equal to 1"),
        (SWEEP, "[1, 4]", "[4, 1]", "batches: .*write each value once, the smallest first, not 4, 1"),
        (SWEEP, "[1, 4]", "[]", "batches: Tuple should have at least 1 item"),
        (SWEEP, "[0.5, 1.0]", "[0.0, 1.0]", "rates.0: Input should be greater than 0"),
        (SWEEP, "[0.5, 1.0]", "[0.5, inf]", "rates.1: Input should be a finite number"),
        (SWEEP, "{batch}", "{size}", "scaled: .*may hold {batch} and {rate} and nothing else in braces"),
        (SWEEP, "{batch}", "{batch", "scaled: "),
        (SWEEP, "{batch}", "2", "scaled: .*spells one stack for every batch: write {batch} in it"),
        (SWEEP, "{rate:g}", "2", "scaled: .*spells one stack for every rate: write {rate} in it"),
        (SWEEP, '"idea"', '"idea:x"', "optimizers.0: .*write hyper-parameters as idea:name=value"),
        (SWEEP, '["idea"]', "[]", "optimizers: Tuple should have at least 1 item"),
        (
            SWEEP,
            'rule = "sqrt"',
            'rule = "sqrt"\nbaselines = ["gtp"]',
            "the study batch_sweep names gtp, which the card",
        ),
        (SWEEP, 'rule = "sqrt"', 'rule = "sqrt"\nspeed = 2', "speed: Extra inputs are not permitted"),
        (GRID, '"1/3"', '"a third"', "a rate is a number or a fraction such as 1/3, not 'a third'"),
        (GRID, '"1/3"', '"1/0"', "a rate is a number or a fraction such as 1/3, not '1/0'"),
        (GRID, '"1/3"', '"-1/3"', "Input should be greater than 0"),
        (GRID, '"1/3" = "idea:factor=3", ', "", "Idea has 1 rates and AdamW 2: give every side as many"),
        (GRID, '"Idea"', '"AdamW"', "two have one label: AdamW, AdamW"),
        (GRID, '"Idea"', '"Idea"\nbaselines = ["gtp"]', "the study rate_grid names gtp, which the card"),
        (NOISE, "[0.0, 0.3]", "[0.0, 1.0]", "shares.1: Input should be less than 1"),
        (NOISE, "shares", "longer = 0\nshares", "longer: Input should be greater than or equal to 1"),
    ],
)
def test_a_bad_study_is_refused_in_one_sentence(tmp_path: Path, study: str, old: str, new: str, message: str) -> None:
    path = tmp_path / "ideas" / "idea" / "card.toml"
    path.parent.mkdir(parents=True)
    good = CARD.format(id="idea", name="Idea", category="ideas") + study
    path.write_text(good)
    assert read_card(path).study is not None
    path.write_text(good.replace(study, study.replace(old, new, 1)))
    with pytest.raises(CardError, match=message) as caught:
        read_card(path)
    assert len(str(caught.value).splitlines()) == 1
