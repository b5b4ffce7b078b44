"""Measures what the doublings cost, and what a step of the stacked model costs beside one of a fresh model."""

from __future__ import annotations

from suite.topics.studies.lab import Lab, StudyTable
from techniques.incremental.shared.growth_cost import growth_costs


def study(lab: Lab) -> list[StudyTable]:
    """Returns the table ``growth_cost``."""
    return [growth_costs(lab, "progressive_stacking", "progressive_stacking:carry_optimizer=true")]
