"""Predictions of blocks against the techniques' own masks of pairs, and the study that times them."""

from collections.abc import Sequence
from itertools import cycle
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from suite.topics.studies.lab import StudyTable
from techniques.attention.a3 import study as of_a3
from techniques.attention.a3.technique import A3
from techniques.attention.dota import study as of_dota
from techniques.attention.dota.blocks import detected_blocks
from techniques.attention.dota.technique import detected, ternary
from techniques.attention.elsa import study as of_elsa
from techniques.attention.elsa.blocks import near_blocks
from techniques.attention.elsa.hashing import hamming, signs
from techniques.attention.elsa.technique import estimates
from techniques.attention.sanger import study as of_sanger
from techniques.attention.sanger.blocks import predicted_blocks
from techniques.attention.sanger.technique import prediction_mask, unit
from techniques.attention.shared import block_maxima, skipping
from techniques.attention.shared.block_maxima import over_keys, over_queries
from techniques.attention.shared.kept_pairs import Pairs, kept_attention, pairs_of, touched
from techniques.attention.shared.skipping import BOTH, FORWARD, SkippingRow, at_even
from techniques.attention.vitcod import study as of_vitcod

STUDIES = {"dota": of_dota, "elsa": of_elsa, "sanger": of_sanger}
QUOTED = {"dota": {152.6, 4.5}, "elsa": {58.1}, "sanger": {4.64}}


def pairs(n: int, m: int, d: int = 16, seed: int = 0) -> Pairs:
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 3, n, d, generator=random) * torch.linspace(0.5, 4, n)[:, None]
    key = torch.randn(2, 3, m, d, generator=random) * torch.linspace(0.5, 2, m)[:, None]
    return pairs_of(query, key, None, False, d**-0.5)


def test_maxima_of_blocks_are_those_of_their_entries():
    scores = torch.randn(11, 7, generator=torch.Generator().manual_seed(0))
    for each in (scores, (scores * 100).int()):
        found = over_keys(over_queries(each, 4), 4)
        expected = [[each[i : i + 4, j : j + 4].max() for j in (0, 4)] for i in (0, 4, 8)]
        assert torch.equal(found, torch.stack([torch.stack(row) for row in expected]))


@pytest.mark.parametrize(("n", "m", "block"), [(64, 64, 4), (37, 50, 4), (5, 3, 64), (1, 1, 1)])
def test_sangers_blocks_hold_the_pairs_that_its_prediction_keeps(n, m, block):
    p = pairs(n, m)
    p = p._replace(query=p.query * 6)  # peaked: most rows keep a few pairs
    largest = torch.stack([unit(x).abs().amax() for x in (p.query, p.key)]) * 0.9  # some are cut off
    shares = []
    for threshold in (1e-30, 0.1, 0.9):
        expected = touched(prediction_mask(p, largest, 4, threshold), block)
        assert torch.equal(predicted_blocks(p.query, p.key, largest, 4, threshold, p.scale, block), expected)
        shares.append(expected.float().mean().item())
    assert n < 9 or shares[1] < 0.7 < shares[0]


@pytest.mark.parametrize(("n", "m", "block"), [(64, 64, 4), (37, 50, 8), (1, 1, 4)])
def test_elsas_blocks_hold_the_pairs_within_their_distance(n, m, block):
    p, bias = pairs(n, m), 0.2
    estimated = estimates(hamming(signs(p.query), signs(p.key)), p, bias)
    for threshold in (-2.0, 0.3, 0.6):
        kept = estimated > threshold
        ours, expected = near_blocks(p.query, p.key, threshold, bias, block), touched(kept, block)
        some = expected.any(-1)
        assert torch.equal(ours[some], expected[some])
        assert ours.any(-1).all()
    assert n < 9 or (not expected.all() and some.any())


@pytest.mark.parametrize(("n", "block", "retention"), [(64, 8, 0.25), (37, 8, 0.4), (3, 8, 0.1), (9, 2, 1.0)])
def test_dotas_rows_of_blocks_keep_as_many_and_the_largest(n, block, retention):
    random = torch.Generator().manual_seed(0)
    x, projection = torch.randn(2, n, 24, generator=random), ternary(24, 4, random)
    query, key = (torch.randn(3, 4, 4, generator=random) for _ in range(2))
    ours = detected_blocks(x, projection, query, key, 4, retention, block)
    scores = detected(x, projection, query, key, 4)
    side = -(-n // block)
    count = max(1, round(retention * side))
    assert ours.shape == (2, 3, side, side) and (ours.sum(-1) == count).all()
    filled = torch.nn.functional.pad(scores, (0, -n % block) * 2, value=-torch.inf)
    best = filled.unflatten(-1, (side, block)).amax(-1).unflatten(-2, (side, block)).amax(-2)
    slack = 1e-5 * best.max()  # between scores that are equal but for roundings any may be kept
    assert (best.masked_fill(~ours, torch.inf).amin(-1) >= best.masked_fill(ours, -torch.inf).amax(-1) - slack).all()


class Place:
    """A lab with one trained model of each technique."""

    setting = SimpleNamespace(baseline="bert")

    def progress(self, share: float, what: str) -> None:
        assert 0 <= share < 1 and what

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[None, SimpleNamespace]]]:
        (name,) = stacks
        own = {
            "density": 0.2,
            "blocks": 1.0,
            "mass": 0.7,
            "error": 0.4,
            "load_balance": 0.5,
            "loads": 0.6,
            "candidates": 0.3,
        }
        probes = {f"{name}.{probe}": value for probe, value in own.items()}
        done = SimpleNamespace(status="ok", probes=probes | {"else.density": 9.0})
        return {name: [(None, done), (None, SimpleNamespace(status="diverged", probes={}))]}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_times_each_share_and_shows_pairs_beside_blocks(name, monkeypatch):
    for constant, value in (
        ("TOKENS", (256,)),
        ("DENSITIES", (0.5, 1.0)),
        ("TOPICS", (0.0, 0.9)),
        ("TURNS", 1),
        ("MASK_TOKENS", 256),
    ):
        monkeypatch.setattr(skipping, constant, value)
    found: ModuleType = STUDIES[name]
    tables = {each.name: each for each in found.study(Place())}
    rows = [SkippingRow(*row) for row in tables["skipping"].rows]
    shares = (
        (0.5, 1.0) if name == "dota" else (1.0, 0.5)
    )  # tokens of a segment, two blocks long, are alike: half is left
    assert [(row.passes, row.block_density) for row in rows] == [
        (p, share) for p in (FORWARD, BOTH) for share in shares
    ]
    assert all(min(row.predicting, row.attending, row.whole, row.whole_cpu) > 0 for row in rows)
    assert [row[:2] for row in tables["break_even"].rows] == [(256, FORWARD), (256, BOTH)]
    assert_kinds_stand_apart(tables["numbers"])
    assert_each_headline_has_a_model_or_says_why(tables["headlines"], QUOTED[name])
    masks = {row[0]: row for row in tables["masks"].rows}
    assert masks["recorded, bert"][2:] == (0.2, 1.0, 5.0, 0.7, 0.4)
    assert all(row[3] >= row[2] > 0 for row in masks.values())
    figure = found.plot([*tables.values()])
    assert figure.axes[0].get_xlabel().startswith("share of 64 x 64 blocks")


def assert_kinds_stand_apart(table: StudyTable) -> None:
    kinds = [row[0] for row in table.rows]
    assert [*dict.fromkeys(kinds)] == ["literature", "modelled", "measured"]
    measured = [row for row in table.rows if row[0] == "measured"]
    assert all("this machine" in row[2] and row[3] > 0 for row in measured)
    assert any("baseline drift" in row[1] for row in measured)


def assert_each_headline_has_a_model_or_says_why(table: StudyTable, quoted: set[float]) -> None:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert {row["quoted"] for row in rows} == quoted
    for row in rows:
        assert row["measured"] > 0 and "this machine" in row["measured_of"]
        assert (row["modelled"] is None) == bool(row["unavailable"]) == (row["modelled_of"] == "")
        assert row["modelled"] is None or row["least"] <= row["modelled"] <= row["most"]


@pytest.mark.parametrize(("study", "quoted"), [(of_a3, {2.6}), (of_vitcod, {86.0, 235.3, 6.8})])
def test_a_study_of_what_skips_nothing_times_its_own_form(study, quoted, monkeypatch):
    monkeypatch.setattr(skipping, "TURNS", 1)
    headlines, numbers = study.study(Place())
    assert_each_headline_has_a_model_or_says_why(headlines, quoted)
    assert_kinds_stand_apart(numbers)


def test_vitcods_parts_and_a3s_search_are_the_techniques_own():
    head = skipping.drawn(197, skipping.TOPIC)
    everything = torch.ones(197, 197, dtype=torch.bool)
    torch.testing.assert_close(of_vitcod.in_two_parts(head, everything), skipping.dense(head)[0, 0])
    small = skipping.drawn(32)
    pairs = small.pairs
    kept = A3().pair_mask(torch.nn.Module(), pairs)
    torch.testing.assert_close(of_a3.approximated(small), kept_attention(pairs, small.value, kept))


def row(density: float, whole: float) -> SkippingRow:
    return SkippingRow(64, FORWARD, density, 0.1, whole - 0.1, whole, whole)


@pytest.mark.parametrize(
    ("wholes", "expected"),
    [((0.5, 0.9, 1.1), (0.3, 2.0)), ((1.2, 1.4, 1.9), (None, 1 / 1.2)), ((0.2, 0.3, 0.9), (0.4, 5.0))],
)
def test_break_even_lies_between_the_shares_that_were_tried(wholes, expected):
    rows = [row(density, whole) for density, whole in zip((0.1, 0.2, 0.4), wholes, strict=True)]
    assert at_even(rows, 64, FORWARD) == pytest.approx(expected)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_what_is_attended_to_is_what_was_predicted(study, monkeypatch):
    attended = []
    monkeypatch.setattr(skipping, "TURNS", 1)
    monkeypatch.setattr(skipping, "block_attention", lambda q, k, v, blocks, **_: attended.append(blocks) or q)
    head = skipping.drawn(512, 0.9)
    row = skipping.timed(head, study.predict, 0.25, FORWARD)
    assert all(torch.equal(blocks, study.predict(head, 0.25)) for blocks in attended)
    assert row.block_density == attended[0].float().mean() < 0.3


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_blocks_are_the_same_by_integers_and_by_floats(study, monkeypatch):
    head, found = skipping.drawn(320, 0.7), []
    for faster in (True, False):
        monkeypatch.setattr(block_maxima, "integers_are_faster", lambda width, threads, faster=faster: faster)
        found.append(study.predict(head, 0.3))
    assert torch.equal(*found)


@pytest.mark.parametrize(("ends_s", "off", "expected"), [((1, 3), 0, True), ((2, 3), 0, False), ((1, 3), 1, False)])
def test_integers_are_multiplied_as_such_where_that_is_faster_and_right(ends_s, off, expected, monkeypatch):
    own, other = ends_s
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.float() @ b.float()).int() + off)
    monkeypatch.setattr(block_maxima, "time", SimpleNamespace(perf_counter=cycle([0, own, own, other]).__next__))
    assert block_maxima.integers_are_faster.__wrapped__(64, 1) is expected


def test_what_short_rows_show_goes_into_no_model_of_longer_ones():
    place = Place()
    assert of_sanger.TOKENS == 512 and len(skipping.traces(place, "sanger")) == 1
    assert not skipping.traces(place, "sanger", of_sanger.TOKENS)
    (done, _), *_ = [*zip(*place.runs(["sanger"])["sanger"])][1:]
    place.runs = lambda stacks: {"sanger": [(None, done)]}
    for tokens, expected in ((16, 0), (512, 1)):
        done.probes["sanger.tokens"] = float(tokens)
        assert len(skipping.traces(place, "sanger", of_sanger.TOKENS)) == expected


def test_drawn_segments_share_a_topic_and_independent_tokens_do_not():
    def likeness(topic: float) -> Tensor:
        x = torch.nn.functional.normalize(skipping.drawn(256, topic).query[0, 0], dim=-1)
        return (x[:128] @ x[:128].T).mean() - (x[:128] @ x[128:].T).mean()

    assert likeness(0.6) > 0.4 and abs(likeness(0.0)) < 0.05
