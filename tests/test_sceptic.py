"""A sceptic recomputes verdicts from the stored files alone: cards and records as text, arithmetic written out here.

Nothing of ``suite.judge`` takes part in the recomputation; it only makes the verdicts that are drawn.
"""

from __future__ import annotations

import json
import math
import random
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from scipy.stats import t

from baselines.gpt import Gpt
from suite.entries.card import Property
from suite.entries.catalogue import catalogue
from suite.judge.at_scale import counts_at_scale
from suite.judge.claims import Judgement, verdicts
from suite.judge.known import LearnedPair
from suite.judge.rows import Row, rows
from suite.record.job import Size
from suite.record.store import Store

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
DRAWN = 30
UNJUDGED = ("not measured", "modelled", "quoted")
OWN_SIZES = ("base", "large")
COUNTS = (
    "flops",
    "peak_tensor_bytes",
    "saved_activation_bytes",
    "optimizer_state_bytes",
    "parameter_count",
    "trainable_parameter_count",
    "operators",
    "communication_bytes",
)


def lines() -> dict[str, dict[str, Any]]:
    """Every stored line by its id."""
    return {
        line["id"]: line
        for path in sorted(RESULTS.glob("*/*.jsonl"))
        for line in map(json.loads, path.read_text("utf-8").splitlines())
    }


def card_of(technique: str) -> dict[str, Any]:
    """As it is written."""
    (card,) = (ROOT / "techniques").glob(f"*/{technique}/card.toml")
    return tomllib.loads(card.read_text("utf-8"))


def claim_of(technique: str, id: str) -> dict[str, Any]:
    """As the card has it."""
    (found,) = (each for each in card_of(technique)["claim"] if each["id"] == id)
    return found


def holds(claim: dict[str, Any], low: float, high: float) -> str:
    """The predicate over an interval: the band of the claimed number, never across no change."""
    expected, relation, slack = claim["expected"], claim.get("relation", "=="), claim.get("tolerance", 0.0)
    bottom = expected - slack * abs(expected) if relation in ("==", ">=", ">") else -math.inf
    top = expected + slack * abs(expected) if relation in ("==", "<=", "<") else math.inf
    if not claim.get("absolute") and not claim["metric"].startswith("probe."):
        top = min(top, 1.0) if expected < 1 and relation in ("==", "<=", "<") else top
        bottom = max(bottom, 1.0) if expected > 1 and relation in ("==", ">=", ">") else bottom

    def satisfies(x: float) -> bool:
        return bottom <= x <= top and (relation != "<" or x < top) and (relation != ">" or x > bottom)

    if satisfies(low) and satisfies(high):
        return "holds"
    outside = low > top or high < bottom or (relation == "<" and low >= top) or (relation == ">" and high <= bottom)
    return "does not hold" if outside else "undecided"


def near(claim: dict[str, Any], baseline: str, size: str, parameters: float | None) -> bool:
    """Of a count, which depends on the model's shapes alone."""
    setting = claim.get("setting", {})
    if not setting.get("architecture") and not setting.get("parameters"):
        return True
    alike = baseline in setting.get("baselines", ()) and ("parameters" in setting or size in OWN_SIZES)
    if not alike and setting.get("architecture", "any") != "any":
        return False
    return "parameters" not in setting or (parameters is not None and 0.5 <= parameters / setting["parameters"] <= 2)


def said(claim: dict[str, Any], outcome: str, is_near: bool, size: str) -> str:
    if not claim.get("read"):
        return "statement not read"
    words = {
        "holds": "reproduced" if is_near else f"holds at {size}",
        "does not hold": "contradicted" if is_near else f"not seen at {size}",
    }
    return words.get(outcome, outcome)


def recomputed(judgement: Judgement, stored: dict[str, dict[str, Any]], kept: list[dict[str, Any]]) -> str | None:
    """The word for a judgement on an exact count or a final loss; None where this reader knows no such metric."""
    claim, place = claim_of(judgement.technique, judgement.claim.id), judgement.basis
    metric, technique = claim["metric"], judgement.technique
    beside = claim.get("against") or card_of(technique).get("reference", "baseline")
    if not place.records:  # counted at the paper's own size
        sides = {
            each["stack"]: each["quantities"]
            for each in kept
            if tuple(each["place"][:3]) == (place.baseline, place.size, place.recipe)
        }
        own_stack = f"{technique}:{claim['settings']}" if claim.get("settings") else technique
        of_a_rank = metric.endswith("_per_parameter")
        beside = "baseline" if of_a_rank else beside  # for the size of its model alone
        if own_stack not in sides or beside not in sides:
            return None
        ours, theirs = sides[own_stack], sides[beside]
        if of_a_rank:
            ours = {metric: ours[metric.removesuffix("_per_parameter")] / ours["parameter_count"]}
        value = ours[metric] if claim.get("absolute") else ours[metric] / theirs[metric]
        return said(
            claim,
            holds(claim, value, value),
            near(claim, place.baseline, place.size, theirs.get("parameter_count")),
            place.size,
        )
    evidence = [stored[id] for id in place.records]
    counted = {each["stack"]: each for each in evidence if each["kind"] == "counted"}
    own = next((it for stack, it in counted.items() if stack.partition(":")[0] == technique and stack != beside), None)
    reference = next((each for each in counted.values() if each is not own), None)
    parameters = reference["points"][0]["counters"]["parameter_count"] if reference and reference["points"] else None
    if claim["kind"] in ("counted", "identity") and metric.startswith("probe.") and own:
        name = metric.removeprefix("probe.")
        name = name if name.startswith(f"{technique}.") else f"{technique}.{name}"
        if name not in own["probes"]:
            return None
        value = own["probes"][name]
        return said(claim, holds(claim, value, value), near(claim, place.baseline, place.size, parameters), place.size)
    if claim["kind"] != "counted" or metric not in COUNTS or not own or not reference:
        return None
    if len(own["points"]) != 1 or len(reference["points"]) != 1 or metric == "flops":
        return None  # of runs whose cost changes, and of whole runs, the registry says which share counts
    value, base = (each["points"][0]["counters"][metric] for each in (own, reference))
    value = value if claim.get("absolute") else value / base
    return said(claim, holds(claim, value, value), near(claim, place.baseline, place.size, parameters), place.size)


@cache
def of_rows() -> list[Row]:
    """The rows of the committed records."""
    return rows(Store(RESULTS).read()[0])


@cache
def of_claims() -> list[Judgement]:
    """All verdicts on claims; those on properties are left out."""
    at_scale, _ = counts_at_scale(RESULTS)
    every = verdicts(of_rows(), [entry.card for entry in catalogue().values()], at_scale)
    return [each for each in every if not isinstance(each.claim, Property)]


def test_thirty_verdicts_drawn_at_random_are_recomputed_from_the_stored_files() -> None:
    judged = [each for each in of_claims() if each.outcome not in UNJUDGED]
    stored = lines()
    kept = json.loads((RESULTS / "paper_scale.json").read_text("utf-8"))["counts"]
    random.Random(39).shuffle(judged)
    differing, done = [], 0
    for judgement in judged:
        word = recomputed_noise(judgement, stored) or recomputed(judgement, stored, kept)
        if word is None:
            continue
        done += 1
        if word != judgement.word:
            differing.append((judgement.technique, judgement.claim.id, judgement.basis.title, judgement.word, word))
        if done == DRAWN:
            break
    assert done == DRAWN and not differing, differing


def recomputed_noise(judgement: Judgement, stored: dict[str, dict[str, Any]]) -> str | None:
    """Of a final loss: where several seeds tell it, the far word of a plain t interval of its ratios (the near one of
    what is said of any model), where that is far from the claim's edge; of one seed the side that it is on. None for
    other metrics, and near an edge."""
    claim, place = claim_of(judgement.technique, judgement.claim.id), judgement.basis
    if claim["metric"] != "loss" or claim["kind"] != "quality":
        return None
    runs = [stored[id] for id in place.records if stored[id]["kind"] == "learned"]
    own, control = judgement.technique, claim.get("against")
    own = f"{own}:{claim['settings']}" if claim.get("settings") else own
    losses: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for run in runs:
        is_own = run["stack"] == own if control else run["stack"].partition(":")[0] == judgement.technique
        if run["status"] == "ok" and run["final"] and (is_own or run["stack"] == control or not control):
            losses[is_own][run["seed"]] = run["final"]["loss"]
    ratios = [math.log(loss / losses[False][seed]) for seed, loss in losses[True].items() if seed in losses[False]]
    if judgement.outcome in ("tuning open", "not exercised") or not ratios:
        return None
    of_any = claim.get("setting") == {"architecture": "any"}  # a statement of every model's training
    if len(ratios) == 1:  # what it may differ by, only other rows can tell: not on which side of the edge it is
        side = holds(claim, *2 * [math.exp(ratios[0])])
        return None if judgement.outcome == "undecided" else said(claim, side, of_any, place.size)
    middle = sum(ratios) / len(ratios)
    spread = math.sqrt(sum((each - middle) ** 2 for each in ratios) / (len(ratios) - 1))
    half = float(t.ppf(0.975, len(ratios) - 1)) * spread / math.sqrt(len(ratios))
    plain = holds(claim, math.exp(middle - half), math.exp(middle + half))
    return said(claim, plain, of_any, place.size) if plain != "undecided" else None


def test_far_words_name_the_size_and_near_ones_are_few() -> None:
    """What no reader of a paper may be told: that it is contradicted by something that it does not speak of."""
    judged = of_claims()
    contradicted = [each for each in judged if each.word == "contradicted"]
    assert len(contradicted) < 10 and all(each.near and each.claim.read for each in contradicted)
    unread = [each for each in judged if not each.claim.read]
    assert {each.word for each in unread} <= {"statement not read", *UNJUDGED}
    far = [each for each in judged if re.match("holds at|not seen at", each.word)]
    assert far and all(each.basis.differs and each.word.endswith(each.basis.size) for each in far)


def test_what_was_not_exercised_has_no_quality_on_any_row() -> None:
    """Where every run is the reference's to the bit, in its losses and its end, nothing was tried of a technique whose
    card promises a better loss: either the row is a control, or it says that the mechanism never acted."""
    alike = [row for row in of_rows() if row.known.learned and all(map(_ended_alike, row.known.learned))]
    assert alike
    for row in alike:
        names = {name.partition(":")[0] for name in row.stack.split("+")}
        promised = [claim for name in names for claim in card_of(name)["claim"] if _promises_a_better_loss(claim)]
        if promised and not row.known.does_the_same:
            assert row.inactive, f"{row.stack} on {row.conditions.baseline} is its reference to the bit"
    for row in of_rows():
        if row.inactive:
            assert row.value("equivalent_budget").kind == row.value("loss").kind == "unavailable"


def _ended_alike(pair: LearnedPair) -> bool:
    return (pair.reference.train_loss, pair.reference.final) == (pair.contender.train_loss, pair.contender.final)


def _promises_a_better_loss(claim: dict[str, Any]) -> bool:
    of_quality = claim["metric"] in ("loss", "equivalent_budget", "loss_at_equal_time")
    return (
        of_quality
        and claim["kind"] in ("quality", "measured")
        and (claim.get("relation") == "<" or (claim.get("relation") == "<=" and claim["expected"] <= 1))
    )


def test_what_the_page_on_the_board_says_of_the_records_is_so() -> None:
    """Sizes, devices and cores, in its words; who commits records of another kind says so there."""
    text = " ".join((ROOT / "docs" / "reading.md").read_text("utf-8").split())
    runs = [each for each in lines().values() if each["kind"] in ("learned", "timed")]
    sizes = {(each["conditions"]["size"], each["conditions"]["baseline"]) for each in runs}
    covered = re.search(r"\*\*Sizes\*\*: (.*?) `base` and `large`", text)
    assert covered and {size for size, _ in sizes} == set(re.findall(r"`(\w+)`", covered[1]))
    at_micro = [each for each in runs if each["conditions"]["size"] == "micro" and each["kind"] == "learned"]
    assert {each["conditions"]["baseline"] for each in at_micro} == {"gpt"}
    ladder = "also learned on GPT at `micro`, of seven times the FLOPs, and its reference at `mini`, of seventy"
    assert ladder in covered[1]
    flops = {size: _reference_flops(runs, size) for size in ("nano", "micro", "mini")}
    assert (round(flops["micro"] / flops["nano"]), round(flops["mini"] / flops["nano"], -1)) == (7, 70)
    on_gpu = [each for each in runs if each["conditions"]["device"] != "cpu"]
    assert ("No technique's training was timed on a GPU yet" in text) == (not on_gpu)
    cores = {each["machine"]["facts"]["cores"] for each in runs if each["conditions"]["device"] == "cpu"}
    assert cores == {2} and "what is on the board was measured on two CPU cores" in text


def _reference_flops(runs: list[dict[str, Any]], size: Size) -> float:
    """FLOPs of a whole run of GPT's reference."""
    sought = {
        "baseline": "gpt",
        "baseline_version": Gpt.version,
        "size": size,
        "task": "pretrain",
        "recipe": "modern",
        "steps": Gpt().recipe(size, "modern", "pretrain").steps,
    }
    whole = (each for each in runs if each["kind"] == "learned" and each["stack"] == "baseline")
    (flops,) = {each["flops"] for each in whole if sought.items() <= each["conditions"].items()}
    return float(flops)
