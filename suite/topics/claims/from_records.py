"""Judges claims by all that a results folder has: its records, its counts at the papers' sizes and its studies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from suite.entries.card import Card
from suite.judge.at_scale import counts_at_scale
from suite.judge.claims import Judgement, stacks_of, verdicts
from suite.judge.rows import rows
from suite.judge.study_tables import read_studies
from suite.record.store import Store


def judged(folder: Path, cards: Sequence[Card], on: Collection[str], warn: Callable[[str], None]) -> list[Judgement]:
    """Returns the verdicts on the cards' claims on the baselines ``on``, all where none is named. What cannot be read
    is told to ``warn``."""
    records, problems = Store(folder).read()
    none = f"{folder} holds no records; measure some with: leantrain run --results {folder}"
    stacks, left_out = stacks_of(cards), list[str]()
    at_scale, unread = counts_at_scale(folder, stacks)
    studies, damaged = read_studies(folder)
    known = rows(records, stacks.__contains__, left_out)
    judgements = verdicts(known, cards, at_scale, studies)
    for problem in (*(problems or ([] if records.lines else [none])), *unread, *damaged, *left_out):
        warn(problem)
    return [judgement for judgement in judgements if not on or judgement.baseline in ("", *on)]
