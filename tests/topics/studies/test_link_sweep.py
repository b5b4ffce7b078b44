"""Speed-up against bandwidth: the alpha-beta model's closed forms, crossovers, and tables where there is no link."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from suite.entries.card import LinkSweep
from suite.entries.catalogue import catalogue
from suite.measure.contenders.contender import LinkSpeed, StepTraffic, TimedBlock
from suite.measure.links import BURST_BYTES, LinkedNodes
from suite.pipeline.link import AlphaBeta
from suite.record.job import Job, Setting
from suite.topics.studies import link_sweep
from suite.topics.studies.link_sweep import CrossoverRow, LinkRow, StepModel, crossover, plot, study

ASKED = LinkSweep(name="link_sweep", stack="powersgd", mbit=(10.0, 100.0, 1000.0), paper="a cluster", paper_mbit=1e4)
COMPUTE_S = {"dp_ddp": 0.1, "powersgd": 0.15}
SENT = {"dp_ddp": StepTraffic(sent_bytes=1_000_000, messages=2), "powersgd": StepTraffic(sent_bytes=50_000, messages=4)}
FREE = AlphaBeta(1e-4, 1e9)


class Imagined:
    """A contender whose steps take what the alpha-beta model says of the link as it is."""

    link_now = FREE
    world_size = 2

    def __init__(self, job: Job, **others: Any) -> None:
        self.stack, self.network = job.stack, None

    def __enter__(self) -> Imagined:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def prepare(self) -> None:
        pass

    set_up = prepare

    def block(self, steps: int) -> TimedBlock:
        sent = SENT[self.stack]
        seconds = COMPUTE_S[self.stack] + Imagined.link_now.seconds(sent.sent_bytes, sent.messages)
        return TimedBlock(seconds=steps * seconds, cpu_s=0.0, losses=[1.0] * steps)

    def traffic(self) -> StepTraffic:
        return SENT[self.stack]

    def link(self) -> LinkSpeed:
        return LinkSpeed(latency_s=Imagined.link_now.latency_s, bytes_per_s=Imagined.link_now.bytes_per_s)


class ImaginedNetwork(LinkedNodes):
    def __enter__(self) -> ImaginedNetwork:
        return self

    def __exit__(self, *exception: object) -> None:
        Imagined.link_now = FREE

    def limit(self, mbit: float | None) -> None:
        Imagined.link_now = FREE if mbit is None else AlphaBeta(FREE.latency_s, mbit * 1e6 / 8, BURST_BYTES)


def tables(monkeypatch: pytest.MonkeyPatch, why: str = "", minutes: float = 1.0) -> tuple[list[Any], list[str]]:
    warned: list[str] = []
    monkeypatch.setattr(link_sweep, "reason_without_links", lambda: why)
    monkeypatch.setattr(link_sweep, "Contender", Imagined)
    monkeypatch.setattr(link_sweep, "LinkedNodes", ImaginedNetwork)
    lab = SimpleNamespace(
        setting=Setting(baseline="gpt", size="pico"), minutes=minutes, progress=lambda *_: None, warn=warned.append
    )
    return study(lab, ASKED), warned  # type: ignore[arg-type]


def equal_at() -> float:
    """Mbit/s at which both imagined sides take equally long."""
    apart_s = COMPUTE_S["powersgd"] - COMPUTE_S["dp_ddp"] + 2 * FREE.latency_s
    return (1_000_000 - 50_000) / apart_s * 8 / 1e6


def test_of_steps_that_follow_the_model_measured_and_modelled_agree_at_every_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (by_rate, crossing), warned = tables(monkeypatch)
    rows = [LinkRow(*each) for each in by_rate.rows]
    first, fast, between, *slow = [each.mbit for each in rows]
    assert (first, fast, slow) == (None, 1000.0, [100.0, 10.0]) and not warned
    assert between is not None and 100 < between < 1000
    assert {each.rounds for each in rows} == {link_sweep.ROUNDS}
    for each in rows:
        assert each.speedup == pytest.approx(each.modelled_speedup) == pytest.approx(each.speedup_low)
        assert each.stack_ms == pytest.approx(each.modelled_ms)
    marks = {each.evidence: each for each in (CrossoverRow(*row) for row in crossing.rows)}
    assert 100 < equal_at() < 1000
    assert marks["measured"].mbit == pytest.approx(equal_at(), rel=0.1)  # the burst of a limiter is no rate
    assert marks["measured"].reading.startswith("faster below")
    assert (marks["paper"].mbit, marks["paper"].reading) == (1e4, "a cluster")
    assert plot([by_rate, crossing]).axes


def test_without_links_there_is_the_model_alone_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (by_rate, crossing), warned = tables(monkeypatch, why="namespaces are not allowed")
    rows = [LinkRow(*each) for each in by_rate.rows]
    assert all(each.speedup is each.stack_ms is each.link_mbit is None for each in rows)
    seconds = 0.15 + AlphaBeta(FREE.latency_s, 1.25e6).seconds(50_000, 4)
    assert rows[-1].modelled_ms == pytest.approx(1e3 * seconds)
    assert "unavailable (namespaces are not allowed)" in by_rate.note and "modelled" in warned[0]
    assert [row[0] for row in crossing.rows] == ["modelled", "paper"]
    assert plot([by_rate, crossing]).axes


def test_rates_that_there_was_no_time_for_are_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    (by_rate, _), _ = tables(monkeypatch, minutes=0.0)
    assert [LinkRow(*row).speedup is None for row in by_rate.rows] == [False, True, True, True]


def test_a_slow_rate_has_a_round_at_least_and_no_interval_of_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_sweep, "RATE_S", 0.0)
    (by_rate, crossing), _ = tables(monkeypatch)
    for each in (LinkRow(*row) for row in by_rate.rows):
        assert each.rounds == 1 and each.speedup == pytest.approx(each.modelled_speedup)
        assert each.speedup_low is None and each.speedup_high is None
    assert plot([by_rate, crossing]).axes


def test_a_warm_up_of_a_quarter_of_the_schedule_is_over_before_what_is_timed() -> None:
    steps, burned = link_sweep.schedule_of(5)
    assert steps / 4 < burned and steps - burned == 2 * link_sweep.ROUNDS * 7 + 1


def test_a_crossover_lies_on_the_line_between_its_neighbours() -> None:
    points = [(10.0, 4.0), (100.0, 2.0), (1000.0, 0.5)]
    assert crossover("measured", points).mbit == pytest.approx(math.sqrt(100 * 1000))
    assert crossover("measured", points[:2]).reading == "faster at all rates from 10 to 100 Mbit/s"
    rising = crossover("measured", [(mbit, 1 / speedup) for mbit, speedup in points])
    assert rising.reading.startswith("faster above 316")


def test_a_message_pays_alpha_once_and_beta_by_the_byte() -> None:
    link = AlphaBeta(0.001, 1e6)
    assert link.seconds(5e5) == pytest.approx(0.501) and link.seconds(5e5, messages=3) == pytest.approx(0.503)
    model = StepModel(1.0, StepTraffic(sent_bytes=1000, messages=1), link)
    assert model.at(link) == pytest.approx(1.0) and model.at(AlphaBeta(0.002, 1e3)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="rate above 0"):
        AlphaBeta(0.0, 0.0)


def test_every_technique_that_has_ranks_is_swept() -> None:
    swept = {entry.id for entry in catalogue().values() if isinstance(entry.card.study, LinkSweep)}
    ranked = {
        entry.id
        for entry in catalogue().values()
        if entry.card.category in ("communication", "parallelism") and "ranks" in entry.technique.__dataclass_fields__
    }
    assert swept == ranked
    assert all(entry.card.study.stack == entry.id for entry in catalogue().values() if entry.id in swept)  # type: ignore[union-attr]
