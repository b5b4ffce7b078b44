"""Which collectives run beside products: by what they come from and what they go into, on hand-made steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from suite.meters.collectives import hidden
from suite.record.operator_counts import COLLECTIVE, Operator

PRODUCT, COPY = Operator("mm", "product"), Operator("copy_", "copy")
LAID_OUT, CUT = Operator("all_gather_copy_in", "copy"), Operator("split_with_sizes_copy", "copy")
AT_ONCE = Operator("all-reduce", COLLECTIVE, ranks=2)
ASYNC = replace(AT_ONCE, hidden=True)


@dataclass(frozen=True)
class Ran:
    operator: Operator
    read: Sequence[int] = ()
    written: Sequence[int] = ()
    reads: dict[int, int] = field(init=False)
    writes: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", dict.fromkeys(self.read, 1))
        object.__setattr__(self, "writes", dict.fromkeys(self.written, 1))


def test_what_is_waited_for_at_once_hides_nowhere() -> None:
    assert hidden([Ran(PRODUCT, [1], [2]), Ran(AT_ONCE, [2], [2]), Ran(PRODUCT, [3], [4])]) == set()


def test_what_goes_on_is_hidden_by_a_product_before_its_first_reader() -> None:
    asked = [Ran(PRODUCT, [1], [2]), Ran(ASYNC, [2], [2])]
    assert hidden([*asked, Ran(PRODUCT, [3], [4]), Ran(COPY, [2], [5])]) == {1}
    assert hidden([*asked, Ran(COPY, [2], [5]), Ran(PRODUCT, [3], [4])]) == set()
    assert hidden(asked) == set()  # the last of a backward pass


def gathered(shard: int, whole: int, weight: int) -> list[Ran]:
    """FSDP's unit: laid out, gathered, cut, used."""
    return [
        Ran(LAID_OUT, [shard], [whole]),
        Ran(AT_ONCE, [whole], [whole]),
        Ran(CUT, [whole], [weight]),
        Ran(PRODUCT, [weight, 9], [9]),
    ]


def test_fsdp_gathers_a_unit_beside_the_products_of_the_one_before() -> None:
    assert hidden([*gathered(1, 2, 3), *gathered(4, 5, 6)]) == {5}
