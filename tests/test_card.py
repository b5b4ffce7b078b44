"""A card's schema: every problem is named with its file and field."""

from pathlib import Path

import pytest

from suite.card import CardError, read_card
from suite.scaffold import CARD

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
    assert not card.claim[0].verified


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "Idea"', 'name = "Idea', "not valid TOML"),
        ('name = "Idea"', "", "name: Field required"),
        ('name = "Idea"', 'name = "Idea"\nspeed = 2', "speed: Extra inputs are not permitted"),
        ('arxiv = "0000.00000"', 'arxive = "0000.00000"', "paper.arxive: Extra inputs"),
        ('kind = "counted"', 'kind = "guessed"', r"claim.0.kind: Input should be 'identity'"),
        ('scope = "step"', 'scope = "step"\ntolerance = -0.1', "claim.0.tolerance: Input should be greater"),
        ('id = "idea"', 'id = "ideal"', "must be the names of its folders, not ideas/ideal"),
        ('category = "ideas"', 'category = "thoughts"', "must be the names of its folders, not thoughts/idea"),
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
