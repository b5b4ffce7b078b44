"""Measures what bert2BERT's growth costs, and what a step of the grown model costs beside one of a fresh model."""

from __future__ import annotations

from suite.topics.studies.lab import Lab, StudyTable
from techniques.incremental.shared.growth_cost import growth_costs


def study(lab: Lab) -> list[StudyTable]:
    """Returns the table ``growth_cost``."""
    return [growth_costs(lab, "bert2bert", "bert2bert:carry_optimizer=true", "bert2bert:depth=2")]
