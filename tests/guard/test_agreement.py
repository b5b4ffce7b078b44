"""Repetitions: what must be equal, what may differ, and what nobody can tell."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.entries.installed import baselines
from suite.guard import agreement
from suite.guard.agreement import (
    Noise,
    NoiseOf,
    Piece,
    compare,
    find,
    noise_of,
    obstacles,
    other_code,
    overall,
    repeat,
    setting_of,
    way_back,
)
from suite.guard.findings import Finding
from suite.judge.evidence import Currency
from suite.measure.counting import count
from suite.measure.learning import learn
from suite.measure.timing import Protocol, time_together
from suite.process.child import KILLED
from suite.record.job import Job, Setting
from suite.record.machine import key_of
from suite.record.schema import Code, Evaluation, Learned, Renewal, Side, Timed
from suite.record.store import Store
from tests.factories import (
    CODE,
    MACHINE,
    ROUNDS,
    conditions,
    counted,
    counters,
    learned,
    machine,
    records,
    side,
    timed,
    timings,
)

OTHER = MACHINE.model_copy(update={"key": "other", "facts": MACHINE.facts | {"cpu": "other"}})
PICO = Setting(baseline="gpt", size="pico", steps=20)


def pair(pace_s: float = 0.02, repetition: int = 0, **changes: Any) -> Timed:
    """A timing of a baseline and one technique; ``repetition`` seeds the noise of its times."""
    rng = np.random.default_rng(repetition)
    return timed([side(rng=rng), side("lion", pace_s=pace_s, rng=rng)], **changes)


def known(sigma: float) -> NoiseOf:
    return lambda index, ratio: Noise(sigma, math.inf, "known")


QUIET = known(0.01)


def only(old: Piece, new: Piece) -> Finding:
    (finding,) = compare(old, new, known(0.01))
    return finding


def course(losses: list[float], **changes: Any) -> Learned:
    """A run of as many steps, with their losses and an evaluation half-way."""
    curve = [Evaluation(step=2, loss=3.0, metrics={"accuracy": 0.5})]
    values: dict[str, Any] = {"steps": 4, "train_loss": losses, "curve": curve} | changes
    return learned("lion", **{"trajectory_sha256": f"{losses} {values['curve']}"} | values)


# comparing: counted ---------------------------------------------------------------------------------------------------


def test_counters_are_equal_or_the_byte_is_named() -> None:
    elsewhere = counted("lion", machine=OTHER, code=Code(trajectory="x", counts="x"))
    assert (only(counted("lion"), elsewhere).verdict, only(counted("lion"), elsewhere).why) == ("equal", "all 13 equal")
    byte = only(counted("lion"), counted("lion", points=[counters(peak_tensor_bytes=4 * 2**20 + 1)]))
    assert (byte.verdict, byte.details) == ("changed", "peak_tensor_bytes 4,194,304 → 4,194,305 (+0.00%)")
    kind = counters(peak_by_kind={"activations": 2**20, "parameters": 2**20, "gradients": 1})
    part = only(counted("lion"), counted("lion", points=[kind]))
    assert part.details.startswith("peak_by_kind.gradients 0 → 1")


def test_counters_along_the_run_are_compared_step_by_step() -> None:
    steps = [counters(flops=flops) for flops in (10, 20)]
    late = only(counted(points=steps), counted(points=[steps[0], counters(flops=21)]))
    assert (late.verdict, late.details) == ("changed", "flops 20 → 21 (+5.00%); at 50% of the run")
    more = only(counted(points=steps[:1]), counted(points=steps))
    assert (more.verdict, more.details) == ("changed", "steps with other counts along the run 1 → 2 (+100.00%)")


# comparing: learned ---------------------------------------------------------------------------------------------------


def test_a_run_repeats_to_the_bit_or_its_first_difference_is_named() -> None:
    old = course([4.0, 3.5, 3.25, 3.0])
    assert only(old, old).verdict == overall([only(old, old)]) == "equal"
    bit = only(old, course([4.0, 3.5, math.nextafter(3.25, 4), 3.5]))
    assert (bit.verdict, bit.why) == (
        "changed",
        "differs: mean training loss of steps 3 to 3: 3.25 → 3.2500000000000004",
    )
    less = [Evaluation(step=2, loss=3.0, metrics={"accuracy": 0.25})]
    earlier = only(old, course([4.0, 3.5, 3.0, 3.0], curve=less))
    assert earlier.why == "differs: validation accuracy after step 2: 0.5 → 0.25"  # the training loss differs later
    end = only(old, course([4.0, 3.5, 3.25, 3.0], final=2.5, trajectory_sha256=old.trajectory_sha256))
    assert end.why == "differs: test loss after step 4: 2.0 → 2.5"
    hidden = only(old, course([4.0, 3.5, 3.25, 3.0], trajectory_sha256="other"))
    assert (hidden.verdict, hidden.why) == (
        "changed",
        "differs: the trajectories differ in less than the stored curves show",
    )


def test_a_mean_over_several_steps_says_of_which() -> None:
    old = course([4.0, 3.0, 2.0], steps=8, curve=[])
    new = course([4.0, 3.0, 2.5], steps=8, curve=[])
    assert only(old, new).why == "differs: mean training loss of steps 7 to 8: 2.0 → 2.5"


def test_a_loss_that_is_no_number_in_both_is_the_same() -> None:
    broken = [Evaluation(step=2, loss=math.nan)]
    old, new = (course([4.0] * 4, curve=broken, final=math.nan) for _ in range(2))
    assert only(old, new).verdict == "equal"
    assert only(old, course([4.0] * 4, final=math.nan)).why == "differs: validation loss after step 2: nan → 3.0"


def test_on_a_gpu_last_bits_decide_nothing() -> None:
    gpu = conditions(device="cuda")
    old, new = (course([4.0, 3.5, 3.0, last], conditions=gpu) for last in (2.0, math.nextafter(2.0, 3)))
    assert only(old, new).verdict == "inconclusive"
    assert "on a GPU" in only(old, new).why


def test_of_curves_of_another_machine_it_says_how_far_they_differ() -> None:
    old = learned("lion", final=2.0)
    curve = [each.model_copy(update={"loss": each.loss * (1.002 if each.step == 40 else 1.001)}) for each in old.curve]
    end = Evaluation(step=200, loss=2.0 * (1 - 3e-7))
    new = old.model_copy(update={"machine": OTHER, "curve": curve, "final": end, "trajectory_sha256": "other"})
    far = only(old, new)
    assert far.verdict == "not comparable"
    assert far.why == (
        f"another machine, {MACHINE.name} → {MACHINE.name}: cpu {MACHINE.facts['cpu']} → other; no losses of single "
        "steps were kept; validation losses "
        "differ by at most 0.2 % (after step 40), final test losses by 3e-05 %"
    )
    assert overall([far]) == "inconclusive"
    same = only(old, old.model_copy(update={"machine": OTHER}))
    assert same.verdict == "equal" and "another machine" in same.why


def test_facts_that_were_not_recorded_are_called_so() -> None:
    old = learned("lion", machine=machine("amd-epyc-2c", cpu="AMD EPYC", cores=2))
    here = machine("amd-epyc-f25m17-2c", cpu="AMD EPYC", cores=2, cpu_family=25, cpu_model=17)
    why = only(old, old.model_copy(update={"machine": here})).why
    assert "another machine, amd-epyc-2c → amd-epyc-f25m17-2c: not recorded then: cpu_family, cpu_model" in why
    assert "None" not in why


# comparing: timed -----------------------------------------------------------------------------------------------------


def verdicts(old: Timed, new: Timed, noise: NoiseOf = QUIET) -> dict[str, str]:
    return {each.aspect: each.verdict for each in compare(old, new, noise)}


def test_ratios_are_judged_by_the_noise_between_processes() -> None:
    def verdict(change: float, sigma: float) -> str:
        return verdicts(pair(), pair(0.02 * (1 + change), repetition=1), known(sigma))["step time"]

    assert verdict(0.02, 0.01) == "equivalent"
    assert verdict(0.10, 0.01) == verdict(-0.10, 0.01) == "changed"
    assert verdict(0.02, 0.05) == "inconclusive"  # would hide 10 %
    assert verdict(0.50, 0.05) == "changed"
    times = {"step time", "training time"}
    assert verdicts(pair(), pair(repetition=1)) == dict.fromkeys(times, "equivalent")
    unknown = verdicts(pair(), pair(repetition=1), lambda index, ratio: None)
    assert unknown == dict.fromkeys(times, "inconclusive")
    sequential = verdicts(pair(), pair(repetition=1, pairing="sequential"))
    assert sequential == dict.fromkeys(times, "inconclusive")
    assert verdicts(pair(), pair(machine=OTHER)) == dict.fromkeys(times, "not comparable")


def test_repetitions_of_the_same_code_disagree_in_at_most_one_of_twenty() -> None:
    rng, trials, alarms, sigma = np.random.default_rng(3), 100, 0, 0.02

    def replicate() -> Timed:
        paces = 0.02 * np.exp(sigma * rng.standard_normal(4))
        short = {"rounds": 8, "steps": 32, "rng": rng, "noise": 0.03}
        return timed([side(name, pace_s=pace, **short) for name, pace in zip(["baseline", *"abc"], paces, strict=True)])

    for _ in range(trials):
        # each side of a ratio has its own process: sigma of the ratio is sqrt(2) of a process'
        alarms += overall(compare(replicate(), replicate(), known(sigma * math.sqrt(2)))) == "changed"
    assert alarms <= 11  # P(more | 5 %) < 0.5 %


# how it ended ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (("crashed", "exit code 7"), ("crashed", "exit code 7"), "equal"),
        (("crashed", "exit code 7"), ("ok", ""), "changed"),
        (("ok", ""), ("failed", "KeyError"), "changed"),
        (("hung", "no answer"), ("ok", ""), "inconclusive"),
        (("ok", ""), ("out_of_memory", ""), "inconclusive"),
        (("ok", ""), ("crashed", f"{KILLED} by another process"), "inconclusive"),
    ],
)
def test_how_a_run_ends_is_part_of_it(old: tuple[str, str], new: tuple[str, str], verdict: str) -> None:
    before, after = ({"status": status, "reason": reason} for status, reason in (old, new))
    sides = [[side(), side("lion", **each)] for each in (before, after)]
    for then, now in (
        (counted("lion", **before), counted("lion", **after)),
        (learned("lion", **before), learned("lion", **after)),
        (timed(sides[0]), timed(sides[1])),
    ):
        finding = only(then, now)  # nothing else is compared
        assert (finding.item, finding.aspect, finding.verdict) == ("lion", "status", verdict)


def test_other_contenders_are_still_compared() -> None:
    old, new = (timed([side(), side("lion", status=status), side("sam")]) for status in ("ok", "crashed"))
    assert [(each.item, each.aspect) for each in compare(old, new, known(0.01))] == [
        ("lion", "status"),
        ("sam", "step time"),
        ("sam", "training time"),
    ]
    broken: list[Side] = [side(status="crashed"), side("lion")]
    assert [each.item for each in compare(timed(broken), timed(broken), known(0.01))] == ["baseline"]


# noise ---------------------------------------------------------------------------------------------------------------


def test_the_noise_is_that_of_the_row_s_replicates() -> None:
    offsets = [0.03, -0.02, 0.01, 0.05]
    row = [
        timed([side(noise=0.0), side("lion", pace_s=0.02 * math.exp(each), noise=0.0)], number)
        for number, each in enumerate(offsets)
    ]
    noise = noise_of(row[2], 1, "step time", row)
    assert noise is not None
    assert noise.sigma == pytest.approx(np.std(offsets, ddof=1))
    assert (noise.degrees_of_freedom, noise.source) == (3, "spread over 4 replicates")
    slower = pair(0.03, machine=OTHER, replicate=7, id="a" * 32)
    revised = timed([side(), side("lion", pace_s=0.03, code=Code(trajectory="x", counts="x"))], 8, id="b" * 32)
    again = row[2].model_copy(update={"id": "f" * 32, "started": "2026-01-02T00:00:00+00:00"})
    others = [slower, revised, again, *timings("sam")]  # another machine, other code, the same replicate, another row
    assert noise_of(row[2], 1, "step time", [*row, *others]) == noise
    assert noise_of(row[2], 1, "step time", [row[2], *others]) is None


# before --------------------------------------------------------------------------------------------------------------


def test_records_are_found_by_the_beginning_of_their_id() -> None:
    renewal = Renewal(id="xyz", started="2026-01-01T00:00:00+00:00", family="k", stack="lion", old="a", new="b")
    known = records([counted(id="abc1"), learned(id="abd2"), pair(id="abd"), renewal])
    assert find(known, "abc").kind == "counted"
    assert find(known, "abd").kind == "timed"  # the whole id
    assert find(known, "abd2").kind == "learned"
    with pytest.raises(LookupError, match=r"3 records begin with 'ab' .* give more of the id"):
        find(known, "ab")
    for unknown in ("x", ""):  # a renewal is no run
        with pytest.raises(LookupError, match="leantrain leaderboard --json"):
            find(known, unknown)


def test_other_libraries_and_versions_forbid_and_the_way_back_is_said() -> None:
    commit = "0123456789" * 4
    context = {"packages": {"transformers": "5.1", "triton": None}, "git_commit": commit, "git_dirty": True}
    old = learned("lion", machine=MACHINE.model_copy(update={"context": context}))
    here = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.1", "triton": "3"}}})
    version = baselines()["gpt"].version
    same = old.model_copy(update={"conditions": conditions(baseline_version=version)})
    assert obstacles(same, here) == []
    newer = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.2"}}})
    assert obstacles(same, newer) == ["transformers is 5.2, was 5.1"]
    versioned = old.model_copy(update={"conditions": conditions(baseline_version=version + 1)})
    assert obstacles(versioned, here) == [f"the baseline gpt is version {version}, was {version + 1}"]
    gone = timed([side(), side("lion+no_such:x=1")], conditions=conditions(baseline="no_baseline"))
    assert obstacles(gone, here) == ["no_such is not installed", "no_baseline is not installed"]
    assert way_back(old) == [f"it was measured at commit {commit} with uncommitted changes: git checkout {commit[:12]}"]
    evil = MACHINE.model_copy(update={"context": {"git_commit": "$(rm -rf ~)"}})
    assert way_back(learned(machine=evil)) == []


def test_code_that_changed_is_named_by_the_layer_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"baseline": CODE, "lion": Code(trajectory=CODE.trajectory, counts="new"), "sam": None}
    monkeypatch.setattr(agreement, "installed_code", lambda setting, stack: now[stack])
    assert other_code(learned("lion")) == other_code(counted("baseline")) == other_code(learned("sam")) == []
    assert other_code(counted("lion")) == ["the code of lion changed"]  # a meter did, which steers no run
    now["lion"] = Code(trajectory="new", counts="new")
    assert other_code(learned("lion")) == ["the code of lion changed"]
    assert other_code(pair(protocol=0)) == ["how leantrain times changed", "the code of lion changed"]


def test_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the record's is test text \(dddddddddddd\); say where that is with --data"):
        setting_of(learned("lion"))
    with pytest.raises(LookupError, match="no recipe is called 'moderm'; did you mean modern"):
        setting_of(learned("lion", conditions=conditions(recipe="moderm")))


# again: what is run, and what is kept ---------------------------------------------------------------------------------


def test_the_same_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(agreement, "time_together", lambda *arguments: asked.append(arguments[:4]))
    monkeypatch.setattr(agreement, "learn", lambda job, **options: asked.append(job))
    repeat(learned("lion", 3), PICO)
    assert asked == [Job(setting=PICO, stack="lion", seed=3)]
    asked.clear()
    repeat(pair(replicate=4, orders=[[0, 1]] * 5, pairing="sequential"), PICO)
    assert asked == [(PICO, ("baseline", "lion"), 4, Protocol(rounds=5, sequential=True))]
    asked.clear()
    repeat(timed([side(windows=5), side("lion", windows=5)]), PICO)
    assert asked == [(PICO, ("baseline", "lion"), 0, Protocol(windows=5, rounds=ROUNDS))]


def test_a_run_that_is_equal_under_other_code_renews_it_and_anything_else_is_appended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    revised = Code(trajectory="new", counts="new")
    old = learned("lion", 3)

    def kept(name: str, **changes: Any) -> list[Any]:
        new = old.model_copy(update={"id": "again", **changes})
        monkeypatch.setattr(agreement, "learn", lambda job, **options: new)
        repeat(old, PICO, keep=tmp_path / name)
        return Store(tmp_path / name).read()[0].lines

    (renewal,) = kept("renewed", code=revised)
    assert (renewal.kind, renewal.stack, renewal.old, renewal.new) == ("renewal", "lion", CODE.trajectory, "new")
    assert Currency.of([renewal], lambda setting, stack: revised).has(learned("lion", 4))  # the other seeds, too
    for name, changes in (
        ("same code", {}),
        ("other end", {"code": revised, "final": Evaluation(step=200, loss=2.5)}),
        ("diverged", {"code": revised, "status": "diverged"}),
    ):
        assert [each.id for each in kept(name, **changes)] == ["again"]
    repeat(old, PICO)
    assert len(list(tmp_path.iterdir())) == 4  # nothing is stored unless asked


# for real ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real record of each kind: of a run of pico."""
    folder = tmp_path_factory.mktemp("results")
    for each in (
        count(PICO, "lion"),
        learn(Job(setting=PICO, stack="lion", seed=3)),
        time_together(PICO, ("baseline", "lion"), 1, Protocol(rounds=2)),
    ):
        Store(folder).append(each, each.machine.name)
    return folder


def repro(folder: Path, id: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["repro", id, "--results", str(folder), "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def test_real_records_repeat_each_by_its_kind(real: Path) -> None:
    stored, _ = Store(real).read()
    for piece, aspect in ((stored.counted[0], "counters"), (stored.learned[0], "curve")):
        code, answer = repro(real, piece.id[:12])
        assert (code, answer["verdict"], answer["why"]) == (Exit.FINE, "equal", [])
        assert [(each["item"], each["aspect"], each["verdict"]) for each in answer["findings"]] == [
            ("lion", aspect, "equal")
        ]
    code, answer = repro(real, stored.timed[0].id)
    assert code in (Exit.FINE, Exit.REGRESSED, Exit.INCONCLUSIVE)  # times are the machine's
    assert [each["aspect"] for each in answer["findings"]] == ["step time", "training time"]
    assert answer["repetition"]["orders"] == json.loads(stored.timed[0].model_dump_json())["orders"]
    assert Store(real).read()[0] == stored  # nothing is stored unless asked


def test_code_that_changed_no_bit_is_renewed_for_real_and_code_that_did_is_a_disagreement(
    real: Path, tmp_path: Path
) -> None:
    old = Store(real).read()[0].learned[0]
    older = old.code.model_copy(update={"trajectory": "0" * 32})
    forged = old.model_copy(update={"id": "f" * 32, "code": older})
    assert old.final is not None
    unlike = forged.model_copy(update={"id": "e" * 32, "final": old.final.model_copy(update={"loss": 1.0})})
    for each in (forged, unlike):
        Store(tmp_path).append(each, each.machine.name)
    code, answer = repro(tmp_path, "fff", "--keep")
    assert (code, answer["verdict"], answer["why"][0]) == (Exit.FINE, "equal", "the code of lion changed")
    (renewal,) = Store(tmp_path).read()[0].renewals
    assert (renewal.old, renewal.new) == (older.trajectory, old.code.trajectory)
    assert Currency.of([renewal]).has(forged)
    done = CliRunner().invoke(app, ["repro", "eee", "--results", str(tmp_path)])
    assert done.exit_code == Exit.REGRESSED
    assert "test loss after step 20: 1.0 → " in done.stdout.replace("\n", " ")
    assert "seed 3: differs; the code of lion changed" in done.stdout


def test_other_libraries_forbid_a_repetition(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "learn", lambda *a, **k: pytest.fail("nothing to repeat"))
    old = Store(real).read()[0].learned[0]
    facts = old.machine.facts | {"torch": "1.0"}
    machine = old.machine.model_copy(update={"facts": facts, "key": key_of(facts)})
    Store(tmp_path).append(old.model_copy(update={"machine": machine}), machine.name)
    code, answer = repro(tmp_path, old.id, "--keep")
    assert (code, answer["verdict"], answer["repetition"]) == (Exit.INCONCLUSIVE, "not comparable", None)
    assert "was 1.0" in answer["why"][0]
