"""MASS: fragments, and a decoder that reads them alone beside one that has all tokens in their places."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries.installed import baselines
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from techniques.token_masking.mass.technique import ABSENT, Fragments, Mass, earlier_of, fragments
from techniques.token_masking.shared.masked_tokens import NO_LABEL
from tests.runs import new_run

REFERENCE = "mass:decoder=all"


@given(length=st.integers(2, 200), share=st.floats(0.05, 1), block=st.integers(1, 80), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_a_run_of_a_share_of_each_block(length: int, share: float, block: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = [min(block, length - start) for start in range(1, length, block)]
    counts = [int(share * size) for size in sizes]
    if not sum(counts):
        with pytest.raises(ValueError, match="mask more"):
            fragments(3, length, share, block, generator)
        return
    positions = fragments(3, length, share, block, generator)
    assert positions.shape == (3, sum(counts))
    for row in positions.tolist():
        assert all(later > earlier for earlier, later in pairwise(row))
        for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            inside = [each for each in row if 1 + number * block <= each < 1 + number * block + size]
            assert inside == list(range(inside[0], inside[0] + count)) if count else not inside


def test_the_papers_figure() -> None:
    """x3 x4 x5 x6 of eight are masked: the decoder reads x2 x3 x4 x5, and writes x3 x4 x5 x6."""
    text = torch.tensor([[11, 12, 13, 14, 15, 16, 17, 18]])

    def hidden(batch: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.ones_like(text)}

    share = 4.5 / 7

    def noise(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    seed = next(each for each in range(99) if fragments(1, 8, share, 64, noise(each))[0, 0] == 2)
    short, whole = (
        Fragments(hidden, share, 64, reads)({"input_ids": text}, noise(seed)) for reads in ("fragment", "all")
    )
    assert short["input_ids"][0, 0].tolist() == [11, 12, 1, 1, 1, 1, 17, 18]
    assert short["input_ids"][0, 1].tolist() == [-1, -1, 12, 13, 14, 15, -1, -1]
    assert short["labels"].tolist() == [[13, 14, 15, 16]]
    assert torch.equal(whole["input_ids"], short["input_ids"])
    assert whole["labels"].tolist() == [[NO_LABEL, NO_LABEL, 13, 14, 15, 16, NO_LABEL, NO_LABEL]]


def test_fused_attention() -> None:
    """Where a row before the fragment sees itself alone."""
    short, whole = (new_run("bert", each, size="nano", recipe="modern", steps=8) for each in ("mass", REFERENCE))
    assert short.train(2) == pytest.approx(whole.train(2), rel=1e-4)


def test_what_a_token_sees() -> None:
    inside = torch.tensor([[False, True, True, False]])
    seen = (earlier_of(inside, torch.float32)[0, 0] == 0).int().tolist()
    assert seen == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


def test_the_decoder_begins_as_a_fresh_model_and_reads_with_the_encoders_embeddings() -> None:
    run = new_run("bert", "mass", size="nano", steps=4)
    encoder, decoder = anatomy(run.model).stacks
    assert encoder.depth == decoder.depth == 4
    ours, theirs = (stack.blocks[0].branches for stack in (decoder, encoder))
    norms = [branch.module.weight.norm().item() for branch in (*ours[:2], theirs[0])]
    assert norms == pytest.approx([norms[0]] * 3, rel=0.1)
    assert not torch.equal(ours[0].module.weight, theirs[0].module.weight)
    tables = [part.module for part in anatomy(run.model).embeddings]
    assert len(tables) == len({id(each) for each in tables}) == 3
    (head,) = anatomy(run.model).head
    assert head.module.weight is tables[0].weight


def of_family(name: str, folder: Path) -> Run:
    (folder / "config.json").write_text(json.dumps(dict(baselines()["bert"].families()[name].config)))
    return new_run("bert", Mass(), size="pico", recipe="classic", steps=4, model=str(folder))


def test_another_encoder(tmp_path: Path) -> None:
    assert all(torch.tensor(of_family("electra", tmp_path).train(2)).isfinite())


@pytest.mark.parametrize("name", ["albert", "deberta", "distilbert", "modernbert", "t5", "bart", "roberta"])
def test_encoders_without_such_a_decoder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoder of BERT's kind"):
        of_family(name, tmp_path)


def test_bad_settings_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="mask more"):
        new_run("bert", "mass:share=0.01", size="pico", steps=4)
    for baseline in ("gpt", "vit", "mae"):
        with pytest.raises(ValueError, match="masked language models"):
            new_run(baseline, Mass(), size="pico", steps=4)
    assert ABSENT < 0
