"""Launch tables: every element is visited once, whatever the sizes and addresses; what changed is noticed."""

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.kernels import multi_tensor
from suite.kernels.multi_tensor import LaunchTables, pack_blocks

BLOCK = 64


@triton.jit
def _add_kernel(table, blocks, tensors, WHOLE_ONLY: tl.constexpr, BLOCK: tl.constexpr):
    """x += y, in float32; with ``WHOLE_ONLY`` in the blocks alone that a wide access would serve."""
    tensor, first = multi_tensor.block(blocks, BLOCK)
    x_address = multi_tensor.address(table, 0, tensor, tensors)
    y_address = multi_tensor.address(table, 1, tensor, tensors)
    remaining = multi_tensor.elements(table, 2, tensor, tensors) - first
    x = multi_tensor.pointer(x_address, tl.float32, False) + first
    y = multi_tensor.pointer(y_address, tl.float32, False) + first
    offsets = tl.arange(0, BLOCK)
    mask = offsets < remaining
    if not WHOLE_ONLY or multi_tensor.vectorizable(x_address | y_address, remaining, BLOCK):
        tl.store(x + offsets, tl.load(x + offsets, mask, other=0.0) + tl.load(y + offsets, mask, other=0.0), mask)


def _add(tables: LaunchTables, x: list[Tensor], y: list[Tensor], whole_only: bool = False) -> None:
    for group in tables.groups((x,), (y,)):
        _add_kernel[(group.programs,)](group.table, group.blocks, group.tensors, WHOLE_ONLY=whole_only, BLOCK=BLOCK)


def _pair(sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    return [torch.zeros(size) for size in sizes], [torch.arange(1.0, size + 1) for size in sizes]


@given(st.lists(st.integers(0, 5 * BLOCK), max_size=12))
def test_blocks_cover_every_element_once(sizes: list[int]) -> None:
    seen = []
    for packed in pack_blocks(sizes, BLOCK):
        tensor, first = packed >> 32, (packed & 0xFFFFFFFF) * BLOCK
        seen += [(tensor, element) for element in range(first, min(first + BLOCK, sizes[tensor]))]
    assert seen == [(tensor, element) for tensor, size in enumerate(sizes) for element in range(size)]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]), min_size=1, max_size=6))
def test_kernel_visits_every_element_once(sizes: list[int]) -> None:
    x, y = _pair(sizes)
    _add(LaunchTables(BLOCK), x, y)
    assert all(map(torch.equal, x, y))


def test_neighbours_of_a_tensor_stay_untouched() -> None:
    memory = torch.full((300,), 7.0)
    _add(LaunchTables(BLOCK), [memory[1:100], memory[200:265]], [torch.ones(99), torch.ones(65)])
    expected = torch.full((300,), 7.0)
    expected[1:100] += 1
    expected[200:265] += 1
    assert torch.equal(memory, expected)


def test_vectorizable_is_whole_and_aligned() -> None:
    memory = torch.zeros(4 * BLOCK)
    start = -memory.data_ptr() // 4 % 4  # elements up to the next address that is a multiple of 16 bytes
    aligned, odd = memory[start : start + BLOCK + 3], memory[start + 2 * BLOCK + 1 : start + 3 * BLOCK + 1]
    _add(LaunchTables(BLOCK), [aligned, odd], [torch.ones(BLOCK + 3), torch.ones(BLOCK)], whole_only=True)
    assert aligned.tolist() == [1.0] * BLOCK + [0.0] * 3
    assert not odd.any()


@pytest.mark.parametrize("first_chunk", [2**31 // BLOCK, 2**33 // BLOCK])
def test_addresses_beyond_2_to_the_31_elements(first_chunk: int) -> None:
    """A block far inside a tensor too large to allocate: only the memory that this block reaches is there."""
    x, y = torch.zeros(BLOCK), torch.ones(BLOCK)
    first = first_chunk * BLOCK
    table = torch.tensor([[x.data_ptr() - 4 * first], [y.data_ptr() - 4 * first], [first + BLOCK - 3]])
    _add_kernel[(1,)](table, torch.tensor([first_chunk]), 1, WHOLE_ONLY=False, BLOCK=BLOCK)
    assert x.tolist() == [1.0] * (BLOCK - 3) + [0.0] * 3
    assert pack_blocks([first + 1], 2**20)[-1] == first // 2**20


def test_one_group_for_each_combination_of_dtypes() -> None:
    parameters = [torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(5), torch.zeros(0)]
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    groups = LaunchTables(BLOCK).groups((parameters,), (gradients,))
    assert [group.dtypes for group in groups] == [(torch.float32,) * 2, (torch.bfloat16,) * 2]
    assert groups[0].table.tolist() == [
        [parameters[0].data_ptr(), parameters[2].data_ptr()],
        [gradients[0].data_ptr(), gradients[2].data_ptr()],
        [3, 5],
    ]


def test_starts_are_where_each_tensors_programs_begin() -> None:
    sizes = [5, 0, BLOCK, 3 * BLOCK + 1, 1]
    (group,) = LaunchTables(BLOCK).groups(([torch.zeros(size) for size in sizes],), ())
    assert group.starts.tolist() == [0, 1, 2, 6, 7]
    assert group.starts.dtype == torch.int64


def test_nothing_to_launch_without_elements() -> None:
    assert LaunchTables(BLOCK).groups(([],), ([],)) == []
    assert LaunchTables(BLOCK).groups(([torch.zeros(0)],), ([torch.zeros(0)],)) == []


def test_tables_follow_tensors_that_move() -> None:
    x, y = _pair([5, BLOCK + 1])
    tables = LaunchTables(BLOCK)
    _add(tables, x, y)
    before = tables.groups((x,), (y,))[0].table
    y = [2 * tensor for tensor in y]  # new gradients, as after zero_grad(set_to_none=True)
    _add(tables, x, y)
    assert tables.groups((x,), (y,))[0].table is before
    for tensor in x:
        tensor.data = torch.zeros_like(tensor)  # the same Python objects in other memory, as module.to() does
    _add(tables, x, y)
    assert all(map(torch.equal, x, y))


def test_tables_follow_a_change_of_dtype_and_of_membership() -> None:
    x, y = _pair([5, 6])
    tables = LaunchTables(BLOCK)
    assert len(tables.groups((x,), (y,))) == 1
    y[1] = y[1].to(torch.bfloat16)
    assert len(tables.groups((x,), (y,))) == 2
    y[1] = y[1].to(torch.float16)  # as many bytes as before
    assert tables.groups((x,), (y,))[1].dtypes == (torch.float32, torch.float16)
    assert [group.tensors for group in tables.groups((x[:1],), (y[:1],))] == [1]


def test_gradients_are_not_kept_alive() -> None:
    x, y = _pair([5])
    tables = LaunchTables(BLOCK)
    tables.groups((x,), (list(y),))
    gradient = weakref.ref(y.pop())
    gc.collect()
    assert gradient() is None


def _refused(lasting: list[Tensor], passing: list[Tensor], message: str, tables: LaunchTables | None = None) -> None:
    with pytest.raises(ValueError, match=message):
        (tables or LaunchTables(BLOCK)).groups((lasting,), (passing,))


def test_what_would_corrupt_memory_is_refused() -> None:
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    _refused([a, b], [a], "as many of each")
    _refused([a], [torch.zeros(2, 8)], "make them equal")
    _refused([a], [b.t()], "give contiguous tensors")
    _refused([a, a], [b, b], "give each once")
    _refused([a], [torch.zeros(4, 4, device="meta")], "move them to one")


def test_a_gradient_laid_out_anew_in_its_old_memory_is_refused() -> None:
    """Same object, same address, same size: only the strides say that rows became columns."""
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    tables = LaunchTables(BLOCK)
    tables.groups(([x],), ([y],))
    y.t_()
    _refused([x], [y], "give contiguous tensors", tables)
    _refused([x], [y], "give contiguous tensors", tables)


def test_other_tensors_in_the_same_memory_are_noticed() -> None:
    """New views at the old addresses: only their sizes and strides tell."""
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    tables = LaunchTables(BLOCK)
    tables.groups(([x],), ([y],))
    _refused([x], [y[:2]], "make them equal", tables)
    tables.groups(([x],), ([y],))
    _refused([x.t()], [y], "give contiguous tensors", tables)
    assert tables.groups(([x[:2]],), ([y[:2]],))[0].table[2].tolist() == [8]


def test_another_dtype_in_the_same_memory_is_noticed() -> None:
    """A new view at the old address, with as many bytes: only its dtype tells."""
    x, y = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    tables = LaunchTables(BLOCK)
    tables.groups(([x],), ([y],))
    assert tables.groups(([x],), ([y.view(torch.float16)],))[0].dtypes == (torch.bfloat16, torch.float16)
    assert tables.groups(([x.view(torch.int16)],), ([y],))[0].dtypes == (torch.int16, torch.bfloat16)


MUTATIONS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "nothing": lambda tensor: None,
    "other memory, the same object": lambda tensor: setattr(tensor, "data", tensor.clone()),
    "another object, the same memory": lambda tensor: tensor.view_as(tensor),
    "another object and memory": lambda tensor: tensor.clone(),
    "another dtype of its size, the same memory": lambda tensor: tensor.view(torch.int32),
    "another dtype of its size, in place": lambda tensor: setattr(tensor, "data", tensor.data.view(torch.int32)),
    "another dtype": lambda tensor: tensor.bfloat16(),
    "fewer elements, the same memory": lambda tensor: tensor[:1],
    "fewer elements, in place": lambda tensor: setattr(tensor, "data", tensor.data[:1]),
    "columns for rows, the same memory": lambda tensor: tensor.t() if len(tensor) == 3 else None,
    "columns for rows, in place": lambda tensor: tensor.t_() if len(tensor) == 3 else None,
    "elements apart, the same memory": lambda tensor: tensor.expand(3, 3) if tensor.numel() == 1 else None,
}


def _described(tables: LaunchTables, lists: list[list[Tensor]]) -> object:
    """What would be launched, or the words in which it is refused."""
    try:
        groups = tables.groups(lists[:2], lists[2:])
    except ValueError as error:
        return str(error)
    return [(each.dtypes, each.members, each.table.tolist(), each.blocks.tolist()) for each in groups]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(sorted(MUTATIONS))), max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_whatever_changes_tables_kept_are_tables_made_anew(
    changes: list[tuple[int, int, str]], looked: list[bool]
) -> None:
    lists = [[torch.zeros(3, 3), torch.zeros(1, 1), torch.zeros(0, 3)] for _ in range(3)]
    kept = LaunchTables(BLOCK)
    _described(kept, lists)
    for (row, column, name), look in zip(changes, looked):
        changed = lists[row][column]
        if row < 2 and name.endswith("in place"):
            continue  # not noticed in a lasting list, as the docstring says
        with contextlib.suppress(RuntimeError):  # what one change allows, another forbids
            new = MUTATIONS[name](changed)
            lists[row][column] = changed if new is None else new
        if look:
            assert _described(kept, lists) == _described(LaunchTables(BLOCK), lists)
    assert _described(kept, lists) == _described(LaunchTables(BLOCK), lists)


def test_block_must_be_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        LaunchTables(100)
