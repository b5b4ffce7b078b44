"""Each baseline's own arithmetic, against the model's own loss or a direct count."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from baselines.bert import BRANCHES, IGNORED, Bert, MaskedTokens
from baselines.gpt import Gpt
from baselines.images import DIGITS, DRAWS, TEST_PER_DIGIT, VALIDATION_PER_DIGIT, normalised, shifted, shifts
from baselines.initialisation import sinusoids
from baselines.mae import Mae, features, normal_positions, patchified, sine_cosine_positions, targets
from baselines.text import CHARACTERS, CLS, MASK, PAD, SEP, SPECIAL, characters
from baselines.vit import NOISE, TEST_REPEATS, LabelledPixels, Vit
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
        assert tokens.weight.std().item() == pytest.approx(0.8 / math.sqrt(tokens.embedding_dim), rel=0.05)
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


@pytest.mark.parametrize(("size", "share"), [("nano", 0.5), ("base", 0.75)])
def test_mae_loss_is_the_models_own_and_hides_its_share(size, share):
    """Of pixels at nano, of patches normalised each at base; on a small model, as only the pictures decide."""
    torch.manual_seed(0)
    mae = Mae()
    data = mae.data(size, "pretrain")
    (side, channels, patch), small = data.shape, {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = {f"decoder_{name}": value for name, value in small.items()}
    with torch.device("meta"):
        config = mae.model(size, data).config
    assert (config.image_size, config.num_channels, config.patch_size) == (side, channels, patch)
    assert config.norm_pix_loss == (size == "base")
    model = ViTMAEForPreTraining(ViTMAEConfig(**{**config.to_dict(), **small, **decoder})).eval()
    batch, _ = data.batch(0, 0, 6)
    outputs = mae.forward(model, batch)
    torch.testing.assert_close(mae.losses(outputs, batch).mean(), outputs.loss)
    assert (outputs.mask.mean(1) == share).all()
    kept = batch["noise"].topk(round(data.shape.patches * (1 - share)), largest=False).indices
    assert (outputs.mask.gather(1, kept) == 0).all()
    assert torch.equal(patchified(batch["pixel_values"], patch), model.patchify(batch["pixel_values"]))


def test_mae_positions_tell_patches_apart_by_offset_alone():
    """Inner products of sine-cosine positions depend on the offset only: cos(a)cos(b) + sin(a)sin(b) = cos(a - b)."""
    positions = sine_cosine_positions(64, 8)
    assert (positions[0] == 0).all()
    grid = positions[1:].view(8, 8, 64)
    torch.testing.assert_close((grid[1:, 2:] * grid[:-1, :-2]).sum(-1), (grid[1, 2] @ grid[0, 0]).expand(7, 6))
    torch.testing.assert_close(grid.square().sum(-1), torch.full((8, 8), 32.0))
    assert torch.cdist(positions[1:], positions[1:]).add(torch.eye(64) * 9).min() > 0.1


@pytest.mark.parametrize(("size", "positions_of"), [("nano", normal_positions), ("base", sine_cosine_positions)])
def test_mae_positions_are_fixed_and_the_same_for_all_seeds(size, positions_of):
    mae = Mae()
    model = mae.model(size, mae.data(size, "pretrain"))
    for frozen in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        assert not frozen.requires_grad
        grid = math.isqrt(frozen.shape[1] - 1)
        assert torch.equal(frozen[0], positions_of(frozen.shape[-1], grid))


@pytest.mark.parametrize("width", [40, 64])
def test_mae_small_positions_are_about_equally_far_apart(width):
    positions = normal_positions(width, 4)
    assert (positions[0] == 0).all()
    assert positions[1:].std().item() == pytest.approx(1, rel=0.1)
    distances = torch.cdist(positions[1:], positions[1:])[~torch.eye(16, dtype=torch.bool)] / math.sqrt(width)
    assert 0.8 < distances.min() < math.sqrt(2) < distances.max() < 2.1
    waves = sine_cosine_positions(width, 4)[1:]
    assert torch.cdist(waves, waves).add(torch.eye(16) * 99).min() / math.sqrt(width) < 0.4


def _std(weight):
    return weight.detach().std().item()


def test_the_small_vits_initialisation():
    """Xavier's and LeCun's deviations by width, branches a tenth of that, positions fifty times timm's 0.02."""
    torch.manual_seed(0)
    vit = Vit()
    model = vit.model("nano", vit.data("nano", "pretrain"))
    width, (block, *_) = model.embed_dim, model.blocks
    inner = block.mlp.fc1.out_features
    assert _std(block.attn.qkv.weight) == pytest.approx(math.sqrt(2 / (4 * width)), rel=0.05)
    assert _std(block.mlp.fc1.weight) == pytest.approx(math.sqrt(2 / (width + inner)), rel=0.05)
    assert _std(block.attn.proj.weight) == pytest.approx(0.1 * math.sqrt(2 / (2 * width)), rel=0.05)
    assert _std(block.mlp.fc2.weight) == pytest.approx(0.1 * math.sqrt(2 / (width + inner)), rel=0.05)
    assert _std(model.pos_embed) == pytest.approx(1.0, rel=0.1)
    assert _std(model.head.weight) == pytest.approx(0.02, rel=0.1)
    assert _std(model.patch_embed.proj.weight) == pytest.approx(0.5, rel=0.2)  # of 2 x 2 grey pixels
    assert model.cls_token is None and model.global_pool == "avg"


def test_the_small_maes_initialisation():
    torch.manual_seed(0)
    mae = Mae()
    data = mae.data("nano", "pretrain")
    parts = anatomy(mae.model("nano", data))
    assert [stack.depth for stack in parts.stacks] == [4, 2]
    for block in parts.every_block:
        for linear in block.linears:
            rows, columns = linear.module.weight.shape
            scale = 0.1 if linear in block.branches else 1.0
            assert _std(linear.module.weight) == pytest.approx(scale * math.sqrt(2 / (rows + columns)), rel=0.06)
    patches = parts.model.vit.embeddings.patch_embeddings.projection.weight
    assert _std(patches) == pytest.approx(5 * math.sqrt(2 / (4 + len(patches))), rel=0.2)
    prediction = parts.model.decoder.decoder_pred.weight
    assert _std(prediction) == pytest.approx(0.1 * math.sqrt(2 / sum(prediction.shape)), rel=0.2)


@pytest.mark.parametrize("size", ["pico", "nano", "micro"])
def test_maes_encoder_stays_the_main_stack_when_one_block_is_left_of_it(size):
    mae = Mae()
    parts = anatomy(mae.model(size, mae.data(size, "pretrain")))
    encoder, width = parts.stacks[0].path, parts.width
    parts.set_blocks([parts.blocks[0].module])
    assert (parts.main.path, parts.width, parts.depth) == (encoder, width, 1)


def test_maes_features_are_of_all_patches_in_order():
    """Two pictures that differ in one patch differ most in that patch's features; hiding patches would mix them."""
    torch.manual_seed(0)
    mae = Mae()
    data = mae.data("nano", "pretrain")
    model, share = mae.model("nano", data), 0.5
    pixels, _ = data.batch(0, 0, 4)
    changed = pixels["pixel_values"].clone()
    changed[:, :, 2:4, 6:8] = -changed[:, :, 2:4, 6:8]  # the fourth patch of the second row
    change = features(model, pixels) - features(model, {"pixel_values": changed})
    assert change.shape == (4, 16 * 64)
    assert (change.view(4, 16, 64).norm(dim=-1).argmax(1) == 7).all()
    assert model.config.mask_ratio == share, "the model hides patches again"


def test_mae_is_scored_by_its_features_and_beside_its_neighbours():
    mae = Mae()
    data = mae.data("pico", "pretrain")
    scores = mae.further_scores(mae.model("pico", data), data, data.held_out("test", 4))
    loss, on_features, on_pixels = scores.values()
    assert 0 < loss < 0.3 and on_features > 0.5 and on_pixels > 0.8


@pytest.mark.parametrize("size", ["nano", "base"])
def test_samples_are_grey_pictures_of_what_the_model_says(size):
    """Of a model that is always right: what MAE completes is the original, and ViT's predictions are the labels."""
    for baseline in (Vit(), Mae()):
        batch = baseline.data(size, "pretrain").held_out("test", 12)[0]

        def right(few):
            if "labels" in few:
                return SimpleNamespace(logits=torch.nn.functional.one_hot(few["labels"], DIGITS).float())
            return SimpleNamespace(logits=targets(few), mask=(few["noise"] > 0.5).float())

        (sample,) = baseline.samples(right, batch)
        assert sample.picture.dtype == torch.uint8 and sample.picture.ndim == 2
        height, width = sample.picture.shape
        if baseline.id == "vit":
            labels = batch["labels"][:10].tolist()
            assert sample.caption == f"labels {labels}, predictions {labels}"
            assert width == 10 * height
            continue
        shown, completed, original = sample.picture.split(width // 3, dim=1)
        assert (completed.float() - original.float()).abs().max() <= 1, "up to rounding"
        assert not torch.equal(shown, original)
        assert height == 8 * (width // 3)


def test_vit_loss_and_accuracy():
    vit = Vit()
    _, batch, outputs = _outputs(vit)
    expected = -outputs.logits.log_softmax(-1)[torch.arange(6), batch["labels"]]
    torch.testing.assert_close(vit.losses(outputs, batch), expected)
    assert vit.metrics(outputs, batch)["accuracy"].tolist() == [
        float(row.argmax() == label) for row, label in zip(outputs.logits, batch["labels"], strict=True)
    ]


@pytest.mark.parametrize(("size", "shape"), [("nano", (1, 8, 8)), ("base", (1, 224, 224))])
def test_digits_are_split_in_three_stratified_and_by_task(size, shape):
    vit, draws, repeats = Vit(), DRAWS[size], TEST_REPEATS.get(size, 1)
    data, source, adapt = (vit.data(size, split) for split in ("pretrain", "source", "adapt"))
    assert len(data.train) + (len(data.validation) + len(data.test) // repeats) // draws == 1797
    for found, digits in ((data, range(10)), (source, range(5)), (adapt, range(5, 10))):
        tested, validated = TEST_PER_DIGIT[size] * draws * repeats, VALIDATION_PER_DIGIT[size] * draws
        for part, count in ((found.test, tested), (found.validation, validated)):
            expected = [count if digit in digits else 0 for digit in range(DIGITS)]
            assert part.tensors["labels"].bincount(minlength=DIGITS).tolist() == expected
            assert part.tensors["pixels"].shape[1:] == shape
        assert set(found.train.tensors["labels"].tolist()) == set(digits)
        assert found.classes == DIGITS
    assert len(source.train) + len(adapt.train) == len(data.train)


def test_no_digit_is_in_two_parts():
    data = Vit().data("nano", "pretrain")
    parts = [
        {picture.numpy().tobytes() for picture in part.tensors["pixels"]}
        for part in (data.train, data.validation, data.test)
    ]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert sum(map(len, parts)) == 1797, "no two digits of the data set are equal"


def test_native_digits_are_scikit_learns_own():
    """Each picture times 16 / 255 is one of the data set with its label, up to the rounding to whole steps."""
    from sklearn.datasets import load_digits

    known, labels = load_digits(return_X_y=True)
    data = Vit().data("nano", "pretrain")
    pixels = data.test.tensors["pixels"].flatten(1).double() * 16 / 255
    distance, index = torch.cdist(pixels, torch.from_numpy(known)).min(1)
    assert distance.max() < 8 * 16 / 255
    assert (torch.from_numpy(labels)[index] == data.test.tensors["labels"]).all()


def test_digits_can_be_told_apart_by_nearest_neighbour():
    """An independent classifier on the prepared pixels: wrong labels or a broken resize would show."""
    data = Vit().data("nano", "pretrain")
    train, test = (part.tensors["pixels"].flatten(1).float() for part in (data.train, data.test))
    nearest = torch.cdist(test, train).argmin(1)
    right = data.train.tensors["labels"][nearest] == data.test.tensors["labels"]
    assert right.float().mean() > 0.95


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_normalised_to_the_models_channels(channels):
    grey = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    pixels = normalised(grey, channels)
    assert pixels.shape == (1, channels, 16, 16)
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert pixels.flatten(2).var(1, correction=0).max() == pytest.approx(0)


@given(seed=st.integers(0, 2**31), farthest=st.integers(1, 4))
def test_shifted_pictures_are_the_same_ones_elsewhere(seed, farthest):
    """Each is the window of the picture in a frame of 0 that its shift says; about half are not moved."""
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(1, 256, (60, 2, 8, 8), generator=random, dtype=torch.uint8)
    shift = shifts(60, farthest, random)
    moved = shifted(pixels, shift)
    assert moved.shape == pixels.shape and moved.dtype == torch.uint8
    framed = torch.nn.functional.pad(pixels, (farthest,) * 4)
    windows = framed.unfold(2, 8, 1).unfold(3, 8, 1)  # [60, 2, rows, columns, 8, 8]
    same = (windows == moved[:, :, None, None]).all((1, -1, -2)).flatten(1)
    assert (same.sum(1) == 1).all()
    rows, columns = (farthest - shift).T
    assert torch.equal(same.int().argmax(1), rows * (2 * farthest + 1) + columns)
    assert 10 <= same[:, same.shape[1] // 2].sum() <= 58, "of 60, half and one of the windows in the other half"


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_vits_digits_are_moved_and_noisy_in_training_and_held_out_alike(part):
    data = Vit().data("nano", "pretrain")
    plain = normalised(getattr(data, part).tensors["pixels"], 1)
    if part == "train":
        batch, indices = data.batch(0, 0, 640)
        shown, plain = batch["pixel_values"], plain[indices]
    else:
        shown = torch.cat([each["pixel_values"] for each in data.held_out(part, 64)])
        assert torch.equal(shown, torch.cat([each["pixel_values"] for each in data.held_out(part, 64)]))
    off = shown - plain
    distance = off.flatten(1).std(1)  # of 64 pixels, 0.5 within 0.13: three sd
    still = distance < 0.64
    assert 0.4 < still.float().mean() < 0.75
    assert off[still].std() == pytest.approx(NOISE, rel=0.03) and off[still].mean() == pytest.approx(0, abs=0.02)


def test_pictures_that_are_scored_are_not_moved():
    """Of the training pictures, what augments not has the noise alone."""
    data = Vit().data("nano", "pretrain")
    scored = data.test_transform(data.train[torch.arange(500)], torch.Generator())["pixel_values"]
    off = scored - normalised(data.train.tensors["pixels"][:500], 1)
    assert off.flatten(1).std(1).max() < 0.75 and off.std() == pytest.approx(NOISE, rel=0.02)


def test_large_vits_pictures_are_neither_moved_nor_noisy():
    data = Vit().data("base", "pretrain")
    assert data.transform == data.test_transform == LabelledPixels(3)


@pytest.mark.parametrize("baseline", [Vit(), Mae()], ids=lambda each: each.id)
@pytest.mark.parametrize("part", ["validation", "test"])
def test_each_digit_is_shown_several_times_and_never_alike(baseline, part):
    data = baseline.data("nano", "pretrain")
    pixels, varied = getattr(data, part).tensors["pixels"], "pixel_values" if baseline.id == "vit" else "noise"
    repeats = TEST_REPEATS["nano"] if (baseline.id, part) == ("vit", "test") else 1
    draws = pixels.chunk(DRAWS["nano"] * repeats)
    assert len(draws) > 1 and all(torch.equal(draws[0], each) for each in draws)
    shown = torch.cat([batch[varied] for batch in data.held_out(part, 256)]).chunk(len(draws))
    assert not any((shown[0] == each).flatten(1).all(1).any() for each in shown[1:])
