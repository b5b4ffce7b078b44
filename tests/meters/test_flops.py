import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import register_flop_formula

from suite.meters import flops
from suite.meters.flops import FORMULAS, FlopCounter, attention_backward_flops, attention_flops
from suite.meters.free_operators import free
from tests.meters.models import Block, Transformer, tokens, train_step

aten = torch.ops.aten


def counted(function, *args, **kwargs):
    with FlopCounter() as counter:
        function(*args, **kwargs)
    return counter.total


@settings(max_examples=15, deadline=None)
@given(
    b=st.integers(1, 3),
    h=st.integers(1, 3),
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    d=st.sampled_from([8, 16]),
    causal=st.booleans(),
)
def test_fused_attention_has_the_forward_flops_of_the_written_out_one(b, h, n, m, d, causal):
    q, k, v = torch.randn(b, h, n, d), torch.randn(b, h, m, d), torch.randn(b, h, m, d)
    written_out = counted(lambda: (q @ k.mT).softmax(-1) @ v)
    fused = counted(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
    assert fused == written_out == 2 * b * h * n * m * (d + d)


def test_backward_of_fused_attention_is_two_and_a_half_forwards_and_of_the_written_out_one_two():
    q, k, v = (torch.randn(2, 3, 10, 8, requires_grad=True) for _ in range(3))
    forward = 2 * 2 * 3 * 10 * 10 * 16

    def run(backend):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v).sum().backward()

    assert counted(run, SDPBackend.FLASH_ATTENTION) == forward * 3.5
    assert counted(run, SDPBackend.MATH) == forward * 3


@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 4),
    narrow=st.integers(1, 3),
    wide=st.integers(1, 3),
    side=st.integers(4, 7),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    learned=st.booleans(),
)
def test_a_convolution_has_the_flops_of_its_product(batch, groups, narrow, wide, side, kernel, stride, learned):
    """The product of its groups' weights and the windows of the picture; backward, one for each gradient."""
    picture = torch.randn(batch, groups * narrow, side, side, requires_grad=learned)
    weight = torch.randn(groups * wide, narrow, kernel, kernel, requires_grad=True)

    def windows(picture):
        columns = F.unfold(picture, kernel, stride=stride).unflatten(1, (groups, -1))
        return weight.flatten(1).unflatten(0, (groups, -1)) @ columns

    products = counted(lambda: windows(picture).sum().backward())
    assert counted(lambda: F.conv2d(picture, weight, stride=stride, groups=groups).sum().backward()) == products


@pytest.mark.parametrize("groups", [1, 4])
def test_a_transposed_convolution_costs_as_much_for_each_gradient(groups):
    grown = torch.nn.ConvTranspose1d(8, 4 * groups, 3, stride=2, groups=groups)
    x = torch.randn(2, 8, 5, requires_grad=True)
    forward = counted(grown, x)
    assert forward == 2 * 2 * 5 * grown.weight.numel()
    assert counted(lambda: grown(x).sum().backward()) == 3 * forward


def test_no_attention_operator_of_this_torch_is_without_formula():
    inference = {"_native_multi_head_attention", "_triton_multi_head_attention", "_triton_scaled_dot_attention"}
    decomposes_into_counted_products = {"_scaled_dot_product_attention_math", "scaled_dot_product_attention"}
    operators = {name for name in operator_names() if "attention" in name and not name.endswith("_meta")}
    assert len(operators) > 10
    assert operators - inference - decomposes_into_counted_products <= set(FORMULAS)


def test_every_formula_names_an_operator_that_some_torch_has():
    assert sum(hasattr(aten, name) for name in FORMULAS) >= 20


@pytest.mark.parametrize("kernel", ["efficient", "flash"])
def test_sequence_first_kernels_count_lengths_not_heads(kernel):
    b, n, h, d = 2, 128, 4, 16
    formulas = FlopCounter().flop_registry
    forward = formulas[getattr(aten, f"_{kernel}_attention_forward")]
    backward = formulas[getattr(aten, f"_{kernel}_attention_backward")]
    bias = (None,) if kernel == "efficient" else ()
    output = (None,) if kernel == "efficient" else (None, None)
    q = torch.empty(b, n, h, d, device="meta")
    heads_first = [(b, h, n, d)] * 3
    assert forward(q, q, q, *bias, None, None, n, n, 0.0, False, out_val=None) == attention_flops(*heads_first)
    back = backward(q, q, q, q, *bias, *output, None, None, n, n, 0.0, False, out_val=None)
    assert back == attention_backward_flops(*heads_first)

    packed = q.reshape(b * n, h, d) if kernel == "flash" else q.reshape(1, b * n, h, d)
    offsets = torch.tensor([0, 28, 256], dtype=torch.int32)
    ragged = forward(packed, packed, packed, *bias, offsets, offsets, 228, 228, 0.0, False, out_val=None)
    assert ragged == 4 * h * d * (28**2 + 228**2)
    unknown = offsets.to("meta")  # no data: the longest length for each, an upper bound
    bound = forward(packed, packed, packed, *bias, unknown, unknown, 228, 228, 0.0, False, out_val=None)
    assert bound == 4 * h * d * 2 * 228**2


def test_cudnns_kernels_have_heads_first_or_are_packed():
    b, n, h, d = 2, 128, 4, 16
    formulas = FlopCounter().flop_registry
    forward, backward = formulas[aten._cudnn_attention_forward], formulas[aten._cudnn_attention_backward]
    q = torch.empty(b, h, n, d, device="meta")
    lengths = (n, n, 0.0, False)
    assert forward(q, q, q, None, None, None, *lengths, out_val=None) == attention_flops(*[q.shape] * 3)
    back = backward(q, q, q, q, q, None, None, None, None, None, None, *lengths, out_val=None)
    assert back == attention_backward_flops(*[q.shape] * 3)

    packed, offsets = torch.empty(b * n, h, d, device="meta"), torch.tensor([0, 28, 256], dtype=torch.int32)
    ragged = 4 * h * d * (28**2 + 228**2)
    assert forward(packed, packed, packed, None, offsets, offsets, 228, 228, False, out_val=None) == ragged
    in_place = formulas[aten._cudnn_attention_forward_no_dropout_inplace]
    assert in_place(packed, packed, packed, packed, offsets, None, 228, 228, out_val=None) == ragged


@pytest.mark.parametrize("fused", [False, True])
def test_a_block_has_the_papers_formula(fused):
    b, t, d = 3, 16, 32
    block, x = Block(d, heads=4, fused=fused), torch.randn(b, t, d)
    with torch.no_grad():
        assert counted(block, x) == 24 * b * t * d**2 + 4 * b * t**2 * d  # PaLM, 2204.02311, appendix B


def test_recomputation_is_counted():
    plain, again = (Transformer(checkpointed=c) for c in (False, True))
    steps = [counted(train_step, m, torch.optim.SGD(m.parameters()), tokens()) for m in (plain, again)]
    forward = sum(counted(block, torch.randn(4, 64, 32)) for block in plain.blocks)
    # Torch stops a recomputation at the last tensor that the backward pass needs: at most a whole forward.
    assert steps[0] < steps[1] <= steps[0] + forward


def test_sparse_products_count_stored_elements():
    dense = torch.zeros(6, 5)
    dense[0, 1] = dense[4, 2] = dense[5, 0] = 1.0
    x = torch.randn(5, 7)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert counted(lambda s=sparse: s @ x) == 2 * 3 * 7


def test_integer_and_vector_products_count():
    a, b = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 24, dtype=torch.int8)
    assert counted(torch._int_mm, a, b) == 2 * 32 * 16 * 24
    assert counted(torch.mv, torch.ones(3, 4), torch.ones(4)) == 24
    assert counted(torch.dot, torch.ones(4), torch.ones(4)) == 8


def test_an_operator_without_formula_is_named_and_a_registered_formula_counts():
    @torch.library.custom_op("leantrain_test::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(a.numpy() @ b.numpy())

    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with FlopCounter() as counter:
        product(a, b)
    assert counter.uncounted == {"leantrain_test.product": 1}
    assert counter.total == 0
    register_flop_formula(torch.ops.leantrain_test.product)(lambda a, b, out_shape: 2 * a[0] * a[1] * b[1])
    with FlopCounter() as counter:
        product(a, b)
    assert (counter.uncounted, counter.total) == ({}, 48)


SQUARE = torch.eye(4) * 2
UNKNOWN = {
    "lstm": (lambda: torch.nn.LSTM(4, 4)(torch.ones(2, 1, 4)), {"aten.mkldnn_rnn_layer"}),
    "svd": (lambda: torch.linalg.svd(SQUARE), {"aten._linalg_svd"}),
    "inverse": (lambda: torch.inverse(SQUARE), {"aten.linalg_inv_ex"}),
    "cdist": (lambda: torch.cdist(SQUARE, SQUARE), {"aten._cdist_forward"}),
    "bilinear": (lambda: F.bilinear(SQUARE, SQUARE, torch.ones(3, 4, 4)), {"aten._trilinear"}),
    "encoder": (
        lambda: torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()(torch.ones(1, 4, 8)),
        {"aten._transformer_encoder_layer_fwd"},
    ),
    "fourier": (lambda: torch.fft.fft(SQUARE), {"aten._fft_r2c"}),
    "cholesky": (lambda: torch.linalg.cholesky(SQUARE), {"aten.linalg_cholesky_ex"}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_matrix_work_without_formula_is_listed_with_its_calls(name):
    run, operators = UNKNOWN[name]
    with torch.no_grad(), FlopCounter() as counter:
        run()
        run()
    assert {each: count for each, count in counter.uncounted.items() if each in operators} == dict.fromkeys(
        operators, 2
    )


def test_what_has_no_flops_by_convention_is_not_listed():
    conv, norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
    table, recurrent = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)
    with FlopCounter() as counter:
        picture = F.max_pool2d(norm(conv(torch.randn(2, 3, 8, 8))).relu(), 2).flatten(1)
        words = F.dropout(F.layer_norm(recurrent(table(torch.arange(6))), (8,)), 0.1)
        scores = words.softmax(-1).cumsum(-1).sort().values.clamp(0.1).log_softmax(-1)
        loss = F.nll_loss(scores, torch.arange(6)) + picture.square().mean() + F.mse_loss(scores, words)
        loss.backward()
        torch.optim.AdamW([*conv.parameters(), *table.parameters()], fused=True).step()
        torch.optim.SGD(norm.parameters(), 0.1, momentum=0.9, foreach=True).step()
    assert counter.uncounted == {}
    assert counter.total > 0


MATRIX_WORK = re.compile(
    r"mm(_|$)|linalg_(?!cross|diagonal|_powsum|vector_norm)|(^|_)conv|rnn|lstm|gru(_|$)|attention|cdist|svd|chol|(?<!re)solve"
    r"|linear$|linear_b|(^|_)(lu|qr|eig|det)(_|$)|matmul|einsum|mv$|^_trilinear$|encoder|fft"
)


def operator_names():
    """All that torch registers: ``dir(aten)`` has only those that were used."""
    return {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "aten::" in name}


def test_no_operator_of_this_torch_that_sounds_like_matrix_work_is_free():
    packets = {name: getattr(aten, name) for name in operator_names() if hasattr(aten, name)}
    assert sum(free(packet) for packet in packets.values()) > 500
    wrong = [name for name, packet in packets.items() if MATRIX_WORK.search(name) and free(packet)]
    assert not wrong


def test_products_in_place_count():
    a, b, total = torch.ones(2, 3), torch.ones(3, 4), torch.zeros(2, 4)
    assert counted(total.addmm_, a, b) == counted(torch.mm, a, b) == 48
    assert counted(torch.zeros(5, 2, 4).baddbmm_, a.expand(5, 2, 3), b.expand(5, 3, 4)) == 5 * 48
    assert counted(torch.zeros(2).addmv_, a, torch.ones(3)) == 12
    assert counted(torch.zeros(3, 4).addr_, torch.ones(3), torch.ones(4)) == 24


def test_nothing_is_printed(capsys):
    counted(train_step, m := Transformer(), torch.optim.SGD(m.parameters()), tokens())
    assert capsys.readouterr() == ("", "")


def test_a_torch_that_cannot_skip_what_it_does_not_know_counts_too(monkeypatch):
    """torch 2.11 has no such option, and would leave a wrapped Triton kernel out: it is launched all the same."""
    launched = []
    monkeypatch.setattr(flops, "RUNNING_KERNELS", {})
    monkeypatch.setattr(flops, "_launched", lambda kernel: launched.append(kernel["kernel_idx"]))
    with FlopCounter() as counter:
        torch.ones(2, 3) @ torch.ones(3, 4)
        counter._count_flops("a kernel", None, (), {"kernel_idx": 7})
    assert (counter.total, launched) == (48, [7])
    assert counter.uncounted == {"a kernel": 1}
