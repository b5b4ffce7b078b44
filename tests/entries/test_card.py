"""A card's schema: every problem is named with its file and field."""

import json
import re
import statistics
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suite.entries.card import Card, CardError, read_card
from suite.entries.catalogue import catalogue
from suite.entries.scaffold import CARD, PROBES

GOOD = CARD.format(id="idea", name="Idea", category="ideas")


def at(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ideas" / "idea" / "card.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_scaffolds_card_is_a_card(tmp_path: Path) -> None:
    card = read_card(at(tmp_path, GOOD))
    assert (card.id, card.category, card.reference, card.task) == ("idea", "ideas", "baseline", "pretrain")
    assert card.claim[0].expected == 1.0
    assert not card.claim[0].read and card.claim[0].source == "not read: section 3"


OF_A_METRIC = """
[[property]]
id = "same_flops"
statement = "Scaling costs nothing."
metric = "flops"
expected = 1.0
"""


def test_a_property_of_a_metric_stands_in_the_card_behind_those_of_the_probes(tmp_path: Path) -> None:
    path = at(tmp_path, GOOD + OF_A_METRIC)
    probes = PROBES.format(name="Idea", id="idea", category="ideas", package="plugin", cls="Idea")
    path.with_name("probes.py").write_text(probes)
    own, of_a_metric = read_card(path).properties
    assert (own.metric, own.kind, own.scope, own.absolute) == ("probe.idea.roundings", "identity", "step", True)
    assert (of_a_metric.metric, of_a_metric.kind, of_a_metric.absolute) == ("flops", "identity", False)
    assert [each.id for each in read_card(path).judged] == ["same_state", "scaled_gradients", "same_flops"]


def test_a_file_of_properties_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    path = at(tmp_path, GOOD)
    path.with_name("properties.toml").write_text("")
    with pytest.raises(CardError, match=r"properties\.toml is read by nothing: write .* of probes\.py"):
        read_card(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('metric = "flops"\n', "", "card.toml: property.0.metric: Field required"),
        ('metric = "flops"', 'metric = "probe.idea.x"', "property same_flops is of a probe: write it on the"),
        ("expected = 1.0", "expected = nan", "property.0.expected: Input should be a finite"),
        ("expected = 1.0", "", "expects a ratio of 0; set absolute = true"),
        ("same_flops", "same_state", "two claims have the same id"),
        ("expected = 1.0", 'kind = "measured"', "property.0.kind: Input should be 'identity' or 'counted'"),
        ("[[property]]", "[[properties]]", "properties: Extra inputs"),
    ],
)
def test_a_mistake_in_it_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CardError, match=message):
        read_card(at(tmp_path, GOOD + OF_A_METRIC.replace(old, new)))


OF_NUMBERS = """
[published]
rank = { value = 8, place = "Table 9" }
"law.GRID" = { value = { alpha = [0.0, 0.5] }, place = "Appendix D" }
start = { value = "5/90", place = "Section 2" }
threshold = { place = "Equation 29" }

[free]
bucket_mb = { value = 25.0, reason = "as torch has it" }
"""


def test_numbers_say_where_they_come_from(tmp_path: Path) -> None:
    card = read_card(at(tmp_path, GOOD + OF_NUMBERS))
    assert [each.value for each in card.published.values()] == [8, {"alpha": (0.0, 0.5)}, "5/90", None]
    assert list(card.stated) == ["rank", "law.GRID", "start", "threshold", "bucket_mb"]
    assert card.free["bucket_mb"].reason == "as torch has it"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (', place = "Table 9"', "", "card.toml: published.rank.place: Field required$"),
        ('place = "Table 9"', 'place = ""', "published.rank.place: String should have at least 1 character$"),
        ('reason = "as torch has it"', 'place = "x"', "free.bucket_mb.reason: Field required"),
        ("value = 8", "value = 07:32:00", "published.rank.value: Value error, write a number, a word, a fraction"),
        ("[0.0, 0.5]", "[0.0, 1979-05-27]", "published.law.GRID.value: Value error, write a number"),
        ("bucket_mb", "rank", "Value error, rank: leave it in one of published and free$"),
        ("rank =", '"the rank" =', "published.the rank.*String should match pattern"),
    ],
)
def test_a_number_without_its_place_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(CardError, match=message):
        read_card(at(tmp_path, GOOD + OF_NUMBERS.replace(old, new)))


@pytest.mark.parametrize("id", catalogue())
def test_no_field_of_a_card_equals_its_default(id: str) -> None:
    content, card = tomllib.loads((catalogue()[id].folder / "card.toml").read_text("utf-8")), catalogue()[id].card
    of_metrics = [each for each in card.properties if not each.metric.startswith("probe.")]
    said = [*content.get("claim", []), *content.get("property", [])]
    for claim, written in zip([*card.claim, *of_metrics], said, strict=True):
        for field in written:
            try:
                without = type(claim).model_validate({name: written[name] for name in written.keys() - {field}})
            except ValueError:
                continue  # it has none
            assert without != claim, f"{id}: {claim.id}: {field} is what it is without being said"
    content = {name: value for name, value in content.items() if name not in ("claim", "property")}
    whole = Card.model_validate(content)
    for table in (content, content["paper"], content.get("study", {}), *content.get("by_others", [])):
        for field, value in list(table.items()):
            del table[field]
            with suppress(ValueError):  # it has no default
                assert Card.model_validate(content) != whole, f"{id}: {field} is what it is without being said"
            table[field] = value


def test_no_line_of_a_card_is_long() -> None:
    long = [
        f"{id}: {line[:40]}"
        for id, entry in catalogue().items()
        for line in (entry.folder / "card.toml").read_text("utf-8").splitlines()
        if len(line) > 120
    ]
    assert long == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "Idea"', 'name = "Idea', "not valid TOML"),
        ('name = "Idea"', "", "name: Field required"),
        ('name = "Idea"', 'name = "Idea"\nspeed = 2', "speed: Extra inputs are not permitted"),
        ('arxiv = "0000.00000"', 'arxive = "0000.00000"', "paper.arxive: Extra inputs"),
        ('kind = "counted"', 'kind = "guessed"', r"claim.0.kind: Input should be 'identity'"),
        ('kind = "counted"', 'kind = "counted"\ntolerance = -0.1', "claim.0.tolerance: Input should be greater"),
        ('id = "idea"', 'id = "ideal"', "must be the names of its folders, not ideas/ideal"),
        ('category = "ideas"', 'category = "thoughts"', "must be the names of its folders, not thoughts/idea"),
        ("expected = 1.0", "", "claim.0: .*the claim same_state needs a number in expected"),
        ("expected = 1.0", "expected = nan", "claim.0.expected: Input should be a finite number"),
        ("expected = 1.0", "expected = 0.0", "expects a ratio of 0; set absolute = true"),
        ('kind = "counted"\n', "", "claim.0.kind: Field required"),
        ("expected = 1.0", 'expected = 1.0\nbaselines = ["gtp"]', "the claim same_state names gtp, which the card"),
        ("expected = 1.0", 'expected = 1.0\nrecipes = ["old"]', "claim.0.recipes.0: Input should be 'classic'"),
        ("[[claim]]", GOOD[GOOD.index("[[claim]]") :] + "\n[[claim]]", "two claims have the same id"),
    ],
)
def test_a_mistake_is_named_with_file_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = at(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(CardError, match=message) as caught:
        read_card(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = at(tmp_path, "")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CardError, match="not valid TOML"):
        read_card(path)


def test_a_card_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CardError, match="cannot be read: No such file"):
        read_card(tmp_path / "ideas" / "idea" / "card.toml")


# whatever a file holds, the reader gives a card or a CardError

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
whole = tomllib.loads(GOOD)
quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
fuzz = settings(max_examples=100, deadline=None, suppress_health_check=quiet)


def read(content: bytes, tmp_path: Path) -> Card | None:
    path = tmp_path / "ideas" / "idea" / "card.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        return read_card(path)
    except CardError as error:
        message = str(error)
    assert message.isprintable()
    return None


@fuzz
@given(data=st.data())
def test_any_values_in_a_cards_fields_give_a_card_or_a_clear_error(data: st.DataObject, tmp_path: Path) -> None:
    """TOML writers are not in the standard library, so that the parser's result is replaced."""
    card: dict[str, Any] = json.loads(json.dumps(whole))
    for part in data.draw(st.lists(st.sampled_from([card, card["paper"], card["claim"][0]]), min_size=1, max_size=3)):
        part[data.draw(st.sampled_from([*part, "variant", "tolerance", "quality_within", "recipes"]))] = data.draw(
            anything
        )
    with mock.patch("suite.entries.card.tomllib.loads", return_value=card):
        read(b"", tmp_path)


@fuzz
@given(text=st.text(max_size=60) | st.binary(max_size=60), at=st.integers(0, len(GOOD)), cut=st.integers(0, 40))
def test_any_damage_to_a_file_gives_a_card_or_a_clear_error(
    text: str | bytes, at: int, cut: int, tmp_path: Path
) -> None:
    middle = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    read(GOOD[:at].encode() + middle + GOOD[at + cut :].encode(), tmp_path)


@pytest.mark.parametrize(
    "value", ["[" * 5000, "1" * 5000, "{a=" * 3000, "1e999", "-9223372036854775809", '"\\ud800"', "07:32:00", "9" * 400]
)
def test_hostile_values_give_a_clear_error(value: str, tmp_path: Path) -> None:
    assert read(GOOD.replace("expected = 1.0", f"expected = {value}").encode(), tmp_path) is None


def test_half_of_the_cards_are_read_at_a_glance() -> None:
    texts = [(entry.folder / "card.toml").read_text("utf-8") for entry in catalogue().values()]
    tables = re.compile(
        r"^\[(published|free|acts)\b.*?(?=^\[(?!published|free|acts)|\Z)", re.MULTILINE | re.DOTALL
    )  # looked up
    lines = [tables.sub("", text).count("\n") for text in texts]
    assert statistics.median(lines) <= 90  # of 120 letters at most


def test_what_is_measured_says_where_its_paper_saw_it() -> None:
    unsaid = {
        f"{name}.{claim.id}"
        for name, entry in catalogue().items()
        for claim in entry.card.claim
        if claim.kind in ("measured", "quality") and not (claim.setting and claim.setting.sentence)
    }
    assert unsaid == set()


def test_a_claim_says_where_its_paper_saw_it(tmp_path: Path) -> None:
    there = '\n[claim.setting]\narchitecture = "GPT-2 small"\nparameters = 124e6\ndevice = "8 A100"\n'
    (claim,) = read_card(at(tmp_path, GOOD + there)).claim
    assert claim.setting and claim.setting.sentence == "architecture GPT-2 small; parameters 1.24e+08; device 8 A100"


def test_a_setting_of_unknown_facts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"claim.0.setting.gpu: Extra inputs"):
        read_card(at(tmp_path, GOOD + '\n[claim.setting]\ngpu = "A100"\n'))
