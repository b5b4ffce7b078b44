"""Each baseline's own arithmetic, against the model's own loss or a direct count."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from baselines.bert import BRANCHES, IGNORED, Bert, MaskedTokens
from baselines.gpt import Gpt
from baselines.images import DIGITS, TEST_PER_DIGIT, normalised
from baselines.initialisation import sinusoids
from baselines.mae import Mae, patchified, sine_cosine_positions
from baselines.text import CHARACTERS, CLS, MASK, PAD, SEP, SPECIAL, characters
from baselines.vit import Vit
from suite.model.anatomy import anatomy


@given(
    rows=st.integers(1, 6), length=st.integers(8, 130), share=st.sampled_from([0.15, 0.3]), seed=st.integers(0, 2**31)
)
def test_bert_masks_exactly_its_share_and_never_the_framing(rows, length, share, seed):
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(len(SPECIAL), 50, (rows, length))).short()
    tokens[:, 0], tokens[:, -1], tokens[:, length // 2] = CLS, SEP, SEP
    batch = MaskedTokens(50, share)({"input_ids": tokens}, torch.Generator().manual_seed(seed))
    chosen = batch["labels"] != IGNORED
    assert (chosen.sum(1) == round(share * length)).all()
    assert not chosen[(tokens == CLS) | (tokens == SEP)].any()
    assert torch.equal(batch["labels"][chosen], tokens.long()[chosen])
    assert torch.equal(batch["input_ids"][~chosen], tokens.long()[~chosen])


def test_bert_shows_mask_random_and_original_8_to_1_to_1():
    tokens = torch.full((2000, 40), 7, dtype=torch.int16)
    batch = MaskedTokens(1000, 0.15)({"input_ids": tokens}, torch.Generator().manual_seed(0))
    shown = batch["input_ids"][batch["labels"] != IGNORED]
    shares = torch.stack([shown == MASK, shown == 7, (shown != MASK) & (shown != 7)]).float().mean(1)
    # 12000 draws: four standard deviations of a 10 % share are 0.011.
    assert torch.allclose(shares, torch.tensor([0.8, 0.1, 0.1]), atol=0.011)
    assert shown[shown != MASK].min() >= len(SPECIAL)


def _outputs(baseline, **changes):
    torch.manual_seed(0)
    data = baseline.data("nano", "pretrain")
    model = baseline.model("nano", data).eval()
    batch, _ = data.batch(0, 0, 6)
    return model, batch, baseline.forward(model, batch)


def test_bert_loss_is_the_models_own():
    bert = Bert()
    model, batch, outputs = _outputs(bert)
    own = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    torch.testing.assert_close(bert.losses(outputs, batch).mean(), own)
    right = (outputs.logits.argmax(-1) == batch["labels"])[batch["labels"] != IGNORED].float().mean()
    torch.testing.assert_close(bert.metrics(outputs, batch)["accuracy"].mean(), right)


def test_gpt_loss_is_the_models_own():
    gpt = Gpt()
    model, batch, outputs = _outputs(gpt)
    own = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
    torch.testing.assert_close(gpt.losses(outputs, batch).mean(), own)
    assert outputs.past_key_values is None, "training needs no cache"


def test_gpt_shows_half_a_row_and_what_is_likeliest_after_it():
    """A predictor that always says the letter after the last one, in the alphabet."""
    rows = torch.stack(
        [torch.from_numpy(each).long() for each in characters(["abcdefgh" + "z" * 8, "hello yo" + "z" * 8])]
    )
    assert not Gpt().samples(lambda batch: None, {"input_ids": rows + 300}), "tokens that are not letters"

    def predict(batch):
        logits = 50.0 * F.one_hot((batch["input_ids"] + 1).clamp(max=CHARACTERS - 1), CHARACTERS + 9)
        logits[..., CHARACTERS:] = 99.0  # a user's model may have more tokens than the data
        logits[..., PAD] = 99.0
        return SimpleNamespace(logits=logits)

    first, second = Gpt().samples(predict, {"input_ids": rows})
    assert first.text == "abcdefgh|ijklmnop"
    assert second.text == "hello yo|pqrstuvw", "what came after the beginning is not seen"


def test_bert_shows_its_guesses_in_their_row():
    (letters,) = characters(["value of"])
    row = torch.tensor([[CLS, *letters, SEP]])
    labels = torch.full((1, 10), IGNORED)
    labels[0, [1, 8]] = row[0, [1, 8]]
    shown = row.masked_fill(labels != IGNORED, MASK)
    always = SimpleNamespace(logits=F.one_hot(torch.full((1, 10), len(SPECIAL) + 22), CHARACTERS).float())
    (sample,) = Bert().samples(lambda batch: always, {"input_ids": shown, "labels": labels})
    assert sample.text == "[v]alue o[v] | value of"
    assert not Bert().samples(lambda batch: always, {"input_ids": shown + 300, "labels": labels})


def test_the_small_models_begin_with_positions_that_differ_and_bert_with_small_branches():
    positions = sinusoids(32, 64, longest=100, rms=0.1)
    assert positions.square().mean().sqrt().item() == pytest.approx(0.1)
    assert torch.cdist(positions, positions).add(torch.eye(32) * 9).min() > 0.2, "a quarter of their norm"
    torch.manual_seed(0)
    gpt, bert = (baseline.model("nano", None) for baseline in (Gpt(), Bert()))
    for tokens, learned in (
        (gpt.transformer.wte, gpt.transformer.wpe),
        (bert.bert.embeddings.word_embeddings, bert.bert.embeddings.position_embeddings),
    ):
        assert tokens.weight.std().item() == pytest.approx(0.1, rel=0.05), "0.8 / sqrt(64)"
        near, far = torch.cdist(learned.weight[:1], learned.weight[[1, -1]])[0]
        assert far > 1.5 * near, "random ones are all as far apart"
    for block in anatomy(bert).blocks:
        inner, outer = (block.projections["value"].module.weight.std(), block.mlp_output.module.weight.std())
        assert (outer / inner).item() == pytest.approx(BRANCHES, rel=0.1)
    assert bert.config.hidden_dropout_prob == bert.config.attention_probs_dropout_prob == 0


def test_base_begins_as_in_the_papers():
    with torch.device("meta"):
        gpt, bert = (baseline.model("base", None).config for baseline in (Gpt(), Bert()))
    assert gpt.initializer_range == bert.initializer_range == 0.02
    assert bert.hidden_dropout_prob == bert.attention_probs_dropout_prob == 0.1


def test_mae_loss_is_the_models_own_and_hides_three_quarters():
    mae = Mae()
    model, batch, outputs = _outputs(mae)
    torch.testing.assert_close(mae.losses(outputs, batch).mean(), outputs.loss)
    assert (outputs.mask.mean(1) == 0.75).all()
    kept = batch["noise"].topk(16, largest=False).indices
    assert (outputs.mask.gather(1, kept) == 0).all()
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(patchified(pixels, 4), model.patchify(pixels))


def test_mae_positions_tell_patches_apart_by_offset_alone():
    """Inner products of sine-cosine positions depend on the offset only: cos(a)cos(b) + sin(a)sin(b) = cos(a - b)."""
    positions = sine_cosine_positions(64, 8)
    assert (positions[0] == 0).all()
    grid = positions[1:].view(8, 8, 64)
    torch.testing.assert_close((grid[1:, 2:] * grid[:-1, :-2]).sum(-1), (grid[1, 2] @ grid[0, 0]).expand(7, 6))
    torch.testing.assert_close(grid.square().sum(-1), torch.full((8, 8), 32.0))
    assert torch.cdist(positions[1:], positions[1:]).add(torch.eye(64) * 9).min() > 0.1
    model = Mae().model("nano", None)
    for frozen in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        assert not frozen.requires_grad
        assert torch.equal(frozen[0], sine_cosine_positions(frozen.shape[-1], 8))


def test_vit_loss_and_accuracy():
    vit = Vit()
    _, batch, outputs = _outputs(vit)
    expected = -outputs.logits.log_softmax(-1)[torch.arange(6), batch["labels"]]
    torch.testing.assert_close(vit.losses(outputs, batch), expected)
    assert vit.metrics(outputs, batch)["accuracy"].tolist() == [
        float(row.argmax() == label) for row, label in zip(outputs.logits, batch["labels"], strict=True)
    ]


def test_digits_are_stratified_and_split_by_task():
    vit = Vit()
    data, source, adapt = (vit.data("nano", split) for split in ("pretrain", "source", "adapt"))
    assert len(data.train) + len(data.test) == 1797
    for found, digits in ((data, range(10)), (source, range(5)), (adapt, range(5, 10))):
        expected = [TEST_PER_DIGIT["nano"] if digit in digits else 0 for digit in range(DIGITS)]
        assert found.test.tensors["labels"].bincount(minlength=DIGITS).tolist() == expected
        assert set(found.train.tensors["labels"].tolist()) == set(digits)
        assert found.classes == DIGITS
    assert len(source.train) + len(adapt.train) == len(data.train)


def test_digits_can_be_told_apart_by_nearest_neighbour():
    """An independent classifier on the prepared pixels: wrong labels or a broken resize would show."""
    data = Vit().data("nano", "pretrain")
    train, test = (part.tensors["pixels"].flatten(1).float() for part in (data.train, data.test))
    nearest = torch.cdist(test, train).argmin(1)
    right = data.train.tensors["labels"][nearest] == data.test.tensors["labels"]
    assert right.float().mean() > 0.95


def test_pixels_are_normalised_to_three_channels():
    grey = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    pixels = normalised(grey)
    assert pixels.shape == (1, 3, 16, 16)
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert pixels.flatten(2).var(1).max() == pytest.approx(0)
