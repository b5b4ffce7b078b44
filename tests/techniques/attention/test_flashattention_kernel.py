"""FlashAttention's kernels, here under the interpreter, and its tiles in torch's operators, against float64: ragged,
empty, packed, masked, dropped, misaligned; and what they may touch."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from techniques.attention.flashattention import tiled
from techniques.attention.flashattention.attention import flash_attention, packed_attention
from techniques.attention.flashattention.tiled import Attention

kernel = pytest.importorskip("techniques.attention.flashattention.kernel")  # not every platform has Triton

if not kernel.INTERPRETED:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

TILE = kernel.Tiles(32, 16, 4, 1)
PLAIN = kernel.Plan(TILE, TILE, kernel.Tiles(16, 32, 4, 1))
HOPPER = kernel.Plan(*(tiles._replace(tma=True) for tiles in PLAIN[:3]), causal=kernel.Tiles(16, 32, 4, 1, True))
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Case(NamedTuple):
    """Sizes of one attention, and what is special about it."""

    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    dropout_p: float = 0.0
    mask: str = ""

    def tensors(self, dtype: torch.dtype) -> list[Tensor]:
        """Queries, keys, values, and the output's gradient."""
        random = torch.Generator().manual_seed(0)
        heads = ((self.heads, self.queries), *((self.shared, self.keys),) * 2, (self.heads, self.queries))
        return [torch.randn(self.batch, *each, self.width, generator=random).to(dtype) for each in heads]

    @property
    def given(self) -> Attention:
        random = torch.Generator().manual_seed(1)
        shape, mask = (self.batch, self.heads, self.queries, self.keys), None
        if self.mask == "keys":  # of the last sequence a third, and the first none of the first
            mask = torch.rand(self.batch, 1, 1, self.keys, generator=random) < 0.7
            mask[-1] = False
        if self.mask == "pairs":
            mask = torch.rand(*shape, generator=random) < 0.5
            mask[:, :, ::3] = False
        if self.mask == "added":
            mask = torch.randn(1, self.heads, self.queries, self.keys, generator=random)
        seed = torch.tensor([2**40 + 3]) if self.dropout_p else None
        expanded = None if mask is None else mask.expand(shape)
        return Attention(expanded, self.causal, 1 / math.sqrt(self.width), self.dropout_p, seed)


def definition(query: Tensor, key: Tensor, value: Tensor, given: Attention) -> Tensor:
    """softmax(scale Q K^T + mask) V with all scores, in the operands' type; 0 where a query sees nothing."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT * given.scale
    visible = torch.ones(scores.shape, dtype=torch.bool)
    if given.causal:
        visible = visible.tril()
    if given.mask is not None and given.mask.dtype == torch.bool:
        visible = visible & given.mask
    elif given.mask is not None:
        scores = scores + given.mask.to(scores.dtype)
    p = scores.masked_fill(~visible, -math.inf).softmax(-1).masked_fill(~visible, 0.0)
    if given.seed is not None:
        kept = tiled.dropout_mask(given, p[:, :, None], slice(0, p.shape[2]), slice(0, p.shape[3]))[:, :, 0]
        p = p * kept / (1 - given.dropout_p)
    return p @ value


def gradients_of(tensors: list[Tensor], given: Attention, dtype: torch.dtype) -> list[Tensor]:
    """The definition's output and gradients, computed in ``dtype``."""
    *operands, d_out = (each.to(dtype) for each in tensors)
    leaves = [each.detach().requires_grad_() for each in operands]
    output = definition(*leaves, given)
    return [output.detach(), *torch.autograd.grad(output, leaves, d_out)]


def by_kernels(tensors: list[Tensor], given: Attention, plan: Any, **more: Any) -> list[Tensor]:
    query, key, value, d_out = tensors
    output, logarithms = kernel.forward(query, key, value, given, plan=plan, **more)
    saved = query, key, value, output, logarithms, d_out
    return [output, *kernel.backward(*saved, given, plan=plan, **more)]


def by_tiles(tensors: list[Tensor], given: Attention) -> list[Tensor]:
    query, key, value, d_out = tensors
    output, logarithms = tiled.forward(query, key, value, given, 16, 24)
    return [output, *tiled.backward(query, key, value, output, logarithms, d_out, given, 24, 16)]


def as_exact(own: list[Tensor], tensors: list[Tensor], given: Attention) -> None:
    """FlashAttention-3's rule: at most twice the error of the unfused computation in the same type; and a few roundings
    of the largest number, where that has luck."""
    exact = gradients_of(tensors, given, torch.float64)
    unfused = gradients_of(tensors, given, tensors[0].dtype)
    for name, got, theirs, expected in zip(("O", "dQ", "dK", "dV"), own, unfused, exact, strict=True):
        error = (got.double() - expected).abs().max()
        allowed = 2 * (theirs.double() - expected).abs().max()
        luck = 2 * torch.finfo(got.dtype).eps * expected.abs().max() + 1e-6
        assert error <= allowed + luck, f"{name} is off by {error:.3g}, over {allowed:.3g} and {luck:.3g}"


CASES = {
    "full": Case(1, 1, 1, 33, 48, 32),
    "causal": Case(1, 2, 1, 40, 40, 64, causal=True),
    "more queries than keys": Case(1, 1, 1, 40, 17, 32, causal=True),
    "more keys than queries": Case(2, 1, 1, 17, 40, 32, causal=True),
    "one row": Case(2, 1, 1, 1, 1, 32, causal=True),
    "one query": Case(1, 2, 2, 1, 40, 128),
    "grouped": Case(1, 4, 2, 17, 17, 40),
    "wide": Case(1, 1, 1, 17, 17, 256, causal=True),
    "narrow": Case(1, 1, 1, 20, 20, 5, causal=True),
    "dropped": Case(1, 2, 1, 33, 33, 32, causal=True, dropout_p=0.3),
    "padding": Case(2, 1, 1, 17, 33, 32, mask="keys"),
    "empty rows": Case(1, 2, 2, 17, 17, 32, mask="pairs"),
    "causal and padding": Case(2, 1, 1, 33, 33, 32, causal=True, mask="keys"),
    "added": Case(1, 2, 2, 17, 17, 32, mask="added"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_are_as_exact_as_unfused_attention(case: Case) -> None:
    tensors = case.tensors(BF16)
    as_exact(by_kernels(tensors, case.given, PLAIN), tensors, case.given)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("name", ["causal", "grouped"])
def test_other_types(name: str, dtype: torch.dtype) -> None:
    tensors, given = CASES[name].tensors(dtype), CASES[name].given
    as_exact(by_kernels(tensors, given, PLAIN), tensors, given)


HOPPERS = {
    **{name: CASES[name] for name in ("full", "causal", "grouped", "dropped", "causal and padding", "one row")},
}


@pytest.mark.parametrize("case", HOPPERS.values(), ids=HOPPERS)
def test_the_hopper_path_is_the_plain_one(case: Case) -> None:
    """Through descriptors, and by the tiles of a causal pass."""
    tensors = case.tensors(BF16)
    as_exact(by_kernels(tensors, case.given, HOPPER), tensors, case.given)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_tiles_in_torchs_operators_are_as_exact(case: Case, dtype: torch.dtype) -> None:
    tensors = case.tensors(dtype)
    as_exact(by_tiles(tensors, case.given), tensors, case.given)


def test_tiles_are_attention_in_float64() -> None:
    for case in CASES.values():
        tensors = case.tensors(torch.float64)
        for got, expected in zip(
            by_tiles(tensors, case.given), gradients_of(tensors, case.given, torch.float64), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_kernels_and_tiles_keep_the_same_logarithms() -> None:
    case = CASES["empty rows"]
    query, key, value, _ = case.tensors(F32)
    _, own = kernel.forward(query, key, value, case.given, plan=PLAIN)
    _, expected = tiled.forward(query, key, value, case.given, 8, 8)
    assert bool((own[:, :, ::3] == -math.inf).all())
    torch.testing.assert_close(own * math.log(2), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask_dtype", [F32, BF16])
@pytest.mark.parametrize("scale", [0.125, 1.0])
def test_rows_of_a_masks_lowest_number_are_means_on_every_path(causal: bool, mask_dtype: Any, scale: float) -> None:
    """As the definition, and torch's own attention, have it: what is equally low is equally likely."""
    tensors = Case(1, 2, 2, 20, 20, 16).tensors(F32)
    mask = torch.zeros(1, 1, 20, 20, dtype=mask_dtype)
    mask[:, :, 3:9] = torch.finfo(mask_dtype).min
    mask[:, :, 12, 5:] = torch.finfo(mask_dtype).min
    given = Attention(mask.expand(1, 2, 20, 20), causal, scale, 0.0, None)
    exact = gradients_of(tensors, given, torch.float64)
    for own in (by_kernels(tensors, given, PLAIN), by_tiles(tensors, given)):
        for got, expected in zip(own, exact, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_probabilities_of_large_scores_lose_half_a_unit_of_the_logarithm_at_most() -> None:
    """Products of whole numbers are exact, so that the rounding of a row's logarithm, in the base in which it is used,
    is what P is off by when it is made again: dV for a dO of unit rows."""
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randint(-30, 31, (1, 12, 16, 16), generator=random).float() for _ in range(2))
    key[:, :, 1::2] = key[:, :, ::2]
    value = d_out = torch.eye(16).expand(1, 12, 16, 16).contiguous()
    given = Attention(None, False, 1.0, 0.0, None)
    *_, exact = gradients_of([query, key, value, d_out], given, torch.float64)
    *_, own = by_kernels([query, key, value, d_out], given, PLAIN)
    logarithm = (query @ key.mT).amax(-1)[:, :, None] / math.log(2)
    off = ((own.double() / exact).log2().abs() / (torch.finfo(F32).eps * logarithm))[exact > 0.1]
    assert logarithm.max() > 5000 and off.max() <= 0.51


def test_torchs_own_attention_is_the_same() -> None:
    """As an oracle of the whole: masks that broadcast, grouped heads, strides of a layer, gradients by autograd."""
    query, key, value, d_out = Case(2, 4, 2, 150, 150, 16).tensors(F32)
    padding = (torch.arange(150) < torch.tensor([[150], [70]]))[:, None, None]
    for mask, causal in ((None, True), (padding, False), (padding.float().log(), False), (None, False)):
        found = []
        for function, name in ((flash_attention, "mask"), (F.scaled_dot_product_attention, "attn_mask")):
            leaves = [each.transpose(1, 2).clone().transpose(1, 2).requires_grad_() for each in (query, key, value)]
            more = {"causal": causal} if name == "mask" else {"is_causal": causal, "enable_gqa": True}
            output = function(*leaves, **{name: mask}, **more)
            found.append([output.detach(), *torch.autograd.grad(output, leaves, d_out)])
        for got, expected in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# sequences of uneven lengths ----------------------------------------------------------------------------------------

Q_LENGTHS, K_LENGTHS = (5, 0, 20, 1, 3), (17, 4, 20, 1, 0)


def starts(lengths: tuple[int, ...]) -> Tensor:
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()


@pytest.mark.parametrize("plan", [PLAIN, HOPPER], ids=["plain", "hopper"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_each_alone(plan: Any, causal: bool) -> None:
    """Also without queries, without keys, and of one row."""
    packed = kernel.Packed(starts(Q_LENGTHS), starts(K_LENGTHS), max(Q_LENGTHS), max(K_LENGTHS))
    case = Case(1, 2, 1, sum(Q_LENGTHS), sum(K_LENGTHS), 32, causal)
    tensors, given = case.tensors(F32), case.given
    own = by_kernels(tensors, given, plan, packed=packed)
    leaves = [each[0].transpose(0, 1).requires_grad_() for each in tensors[:3]]
    output = packed_attention(*leaves, *packed, causal=causal)
    gradients = torch.autograd.grad(output, leaves, tensors[3][0].transpose(0, 1))
    of_operator = [each.detach().transpose(0, 1)[None] for each in (output, *gradients)]
    q, k = packed.q_starts.tolist(), packed.k_starts.tolist()
    for number in range(len(Q_LENGTHS)):
        rows, columns = slice(*q[number : number + 2]), slice(*k[number : number + 2])
        places = rows, columns, columns, rows
        alone = [each[:, :, place].detach() for each, place in zip(tensors, places, strict=True)]
        expected = gradients_of(alone, given, torch.float64)
        for every in (own, of_operator):
            for got, want, place in zip(every, expected, (rows, rows, columns, columns), strict=True):
                torch.testing.assert_close(got[:, :, place].double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plan", [PLAIN, HOPPER], ids=["plain", "hopper"])
def test_lengths_of_keys_hide_what_fills_them_up(plan: Any) -> None:
    """Whatever stands there: it is no number here."""
    case = Case(3, 1, 1, 17, 33, 32)
    lengths = torch.tensor([33, 0, 9], dtype=torch.int32)
    tensors = case.tensors(F32)
    there = (torch.arange(33) < lengths[:, None])[:, None]
    for each in tensors[1:3]:
        each[~there] = math.nan
    clean = [tensors[0], *(each.nan_to_num(0.0) for each in tensors[1:3]), tensors[3]]
    mask = there[:, :, None].expand(3, 1, 17, 33)
    expected = gradients_of(clean, case.given._replace(mask=mask), torch.float64)
    own = by_kernels(tensors, case.given, plan, key_lengths=lengths)
    for got, want in zip(own, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    leaves = [each.clone().requires_grad_() for each in clean[:3]]
    output = flash_attention(*leaves, key_lengths=lengths)
    for got, want in zip((output, *torch.autograd.grad(output, leaves, clean[3])), expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 5, 1), (5, 0, 1), (0, 0, 2), (4, 4, 0)])
def test_nothing_to_attend_to_gives_zeros(queries: int, keys: int, batch: int) -> None:
    case = Case(batch, 2, 1, queries, keys, 32)
    for own in (by_kernels(case.tensors(F32), case.given, PLAIN), by_tiles(case.tensors(F32), case.given)):
        shapes = [(2, queries), (2, queries), (1, keys), (1, keys)]
        assert [each.shape for each in own] == [(batch, *shape, 32) for shape in shapes]
        assert not any(each.any() for each in own)


# memory -------------------------------------------------------------------------------------------------------------


def guarded(tensor: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """A copy whose heads and rows lie apart, amid numbers that are none; and all of that memory."""
    batch, heads, length, width = tensor.shape
    around = torch.full((batch + 1, heads + 1, length + 3, width + gap), math.nan, dtype=tensor.dtype)
    inside = around[:batch, :heads, 2 : length + 2, :width]
    inside.copy_(tensor)
    return inside, around


@pytest.mark.parametrize("plan", [PLAIN, HOPPER], ids=["plain", "hopper"])
@pytest.mark.parametrize("causal", [False, True])
def test_no_memory_beside_the_tensors_is_read_or_written(
    plan: Any, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read beside them would spoil the results; what is written beside them is seen."""
    case = Case(1, 2, 1, 19, 21, 24, causal)
    tensors = [guarded(each, 8)[0] for each in case.tensors(F32)]
    written: list[Tensor] = []

    def amid(like: Tensor, dtype: Any = None) -> Tensor:
        inside, around = guarded(torch.zeros(like.shape, dtype=dtype or like.dtype), 8)
        written.append(around)
        return inside

    monkeypatch.setattr(kernel, "by_tokens", amid)
    own = by_kernels(tensors, case.given, plan)
    expected = gradients_of(case.tensors(F32), case.given, torch.float64)
    for got, want, around in zip(own, expected, written, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
        assert int((~around.isnan()).sum()) == got.numel()


def test_what_lies_otherwise_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Misaligned, transposed, one head for all; and only what is aligned goes through descriptors."""
    monkeypatch.setattr(kernel, "_has_copy_engine", lambda device: True)
    case = Case(2, 2, 1, 17, 17, 16)
    query, key, value, d_out = case.tensors(BF16)
    shifted = torch.cat([query.new_zeros(1), query.flatten()])[1:].view(query.shape)
    transposed = key.mT.contiguous().mT
    repeated = value[:1].expand(2, -1, -1, -1)
    assert kernel.plan_of(query, key, value).keys.tma
    for other in (shifted, transposed):
        assert not kernel.plan_of(other, key, value).keys.tma
    assert not kernel.plan_of(query.float()).keys.tma
    odd = [shifted, transposed, repeated, d_out[:, :, :1].expand(-1, -1, 17, -1)]
    as_exact(by_kernels(odd, case.given, PLAIN), odd, case.given)


# dropout ------------------------------------------------------------------------------------------------------------


def test_random_numbers_are_philoxs() -> None:
    """Of its authors' vectors for 7 rounds (Random123, kat_vectors)."""
    nothing = [torch.zeros(1, dtype=torch.int64)] * 4
    ones = [torch.full((1,), 0xFFFFFFFF)] * 4
    assert tiled.philox(nothing, 0).item() == 0x5F6FB709
    assert tiled.philox(ones, 2**64 - 1).item() == 0x5207DDC2


def test_dropout_keeps_its_share_and_other_weights_by_other_seeds() -> None:
    like = torch.empty(2, 2, 1, 64, 64)
    whole = slice(0, 64), slice(0, 64)
    given = [Attention(None, False, 1.0, 0.25, torch.tensor([seed])) for seed in (1, 2)]
    one, other = (tiled.dropout_mask(each, like, *whole) for each in given)
    assert one.mean().item() == pytest.approx(0.75, abs=0.02)
    assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()) < 0.05
    assert not torch.equal(one[0, 0], one[0, 1]) and not torch.equal(one[0], one[1])
    part = tiled.dropout_mask(given[0], like[..., :8, :16], slice(8, 16), slice(32, 48))
    assert torch.equal(part, one[..., 8:16, 32:48])


def test_dropout_is_drawn_from_torchs_generator() -> None:
    query, key, value, _ = Case(1, 1, 1, 20, 20, 8).tensors(F32)
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(flash_attention(query, key, value, dropout_p=0.5))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


# the operator -------------------------------------------------------------------------------------------------------


def test_the_operator_is_one_of_torchs() -> None:
    """Its schema, its form for tensors without values, its gradients to second-order differences in float64."""
    query, key, value, _ = Case(1, 2, 1, 5, 6, 3).tensors(torch.float64)
    leaves = [each.requires_grad_() for each in (query, key, value)]
    operator = torch.ops.leantrain.flash_attention.default
    arguments = (*leaves, None, None, None, None, None, 0, 0, True, 0.5, 0.0)
    torch.library.opcheck(
        operator, arguments, test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )
    assert torch.autograd.gradcheck(lambda *each: flash_attention(*each, causal=True, scale=0.5), leaves)


def refused(**changes: Any) -> Callable[[], object]:
    query, key, value, _ = Case(2, 4, 2, 3, 5, 8).tensors(F32)
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value, **changes}
    return lambda: flash_attention(**arguments)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (refused(query=torch.ones(3, 8)), "are \\[batch, heads, length, width\\], not"),
        (refused(query=torch.ones(2, 3, 3, 8)), "heads that divide theirs"),
        (refused(value=torch.ones(2, 2, 5, 4)), "do not fit"),
        (refused(dropout_p=1.0), "probability in"),
        (refused(mask=torch.ones(3, 5, requires_grad=True)), "a mask that learns"),
        (refused(key_lengths=torch.ones(3)), "for each of 2 sequences"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


@pytest.mark.parametrize(
    ("width", "dtype", "scale", "reason"),
    [
        (257, F32, 1.0, "heads of 1 to 256 components"),
        (0, F32, 1.0, "heads of 1 to 256"),
        (8, torch.float64, 1.0, "of one type, float32"),
        (8, F32, -1.0, "a scale above 0"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(width: int, dtype: torch.dtype, scale: float, reason: str) -> None:
    given = Attention(None, False, scale, 0.0, None)
    with pytest.raises(ValueError, match=reason):
        kernel.forward(*(torch.ones(1, 1, 2, width, dtype=dtype),) * 3, given)
