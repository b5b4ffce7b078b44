"""The clock around growth: what it takes for a growth and what for training."""

import time
from pathlib import Path

from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from techniques.incremental.progressive_stacking.technique import ProgressiveStacking
from techniques.incremental.shared import growth_cost
from techniques.incremental.shared.growth_cost import Cost, growth_costs


def test_the_time_of_a_growth_is_no_training(monkeypatch, tmp_path: Path):
    """A growth that sleeps; the run is twice as long as the one that is timed."""
    grow = ProgressiveStacking.grow

    def slow(self, run, deep):
        time.sleep(0.2)
        grow(self, run, deep)

    monkeypatch.setattr(ProgressiveStacking, "grow", slow)
    monkeypatch.setattr(growth_cost, "STEPS", 8)
    monkeypatch.setattr(growth_cost, "ROUNDS", 2)
    lab = Lab(Setting(baseline="gpt", size="pico", recipe="classic", steps=16), tmp_path, 1, 1)
    table = growth_costs(lab, "progressive_stacking:stages=1")
    (cost,) = (Cost(*row) for row in table.rows)
    assert cost.growths == 1
    assert cost.growth_s >= 0.2
    assert cost.share == cost.growth_s / (cost.growth_s + cost.training_s)
    assert 0 < cost.low <= cost.step_over_fresh <= cost.high
