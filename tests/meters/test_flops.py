import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import register_flop_formula

from suite.meters.flops import FORMULAS, FlopCounter, attention_backward_flops, attention_flops
from tests.meters.models import Block, Transformer, tokens, train_step

aten = torch.ops.aten


def counted(function, *args, **kwargs):
    with FlopCounter() as counter:
        function(*args, **kwargs)
    return counter.total


@settings(max_examples=15, deadline=None)
@given(
    b=st.integers(1, 3), h=st.integers(1, 3), n=st.integers(1, 9), m=st.integers(1, 9), d=st.sampled_from([8, 16]),
    causal=st.booleans(),
)  # fmt: skip
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


def test_no_attention_operator_of_this_torch_is_without_formula():
    # Fast-path inference operators, never in training; and the written-out one, which decomposes into counted products.
    known = {"_native_multi_head_attention", "_scaled_dot_product_attention_math", "scaled_dot_product_attention"}
    found = {name for name in dir(aten) if "attention" in name and not name.endswith("_meta")}
    assert found - known <= set(FORMULAS)


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


def test_nothing_is_printed(capsys):
    counted(train_step, m := Transformer(), torch.optim.SGD(m.parameters()), tokens())
    assert capsys.readouterr() == ("", "")
