"""Hashed: the hashing trick (Chen et al., "Compressing neural networks with the hashing trick", ICML 2015).

No position is pruned. The positions of a layer share its part of the budget as values: a hash says which one a
position has, and with which sign. Computing is as dense as ever; parameter, gradient and optimizer state are as long as
the budget. What is saved is the values alone: positions follow from the seed.

Where we differ: the hash is SplitMix64, index and sign in one draw. The budget is exact for the network and shared by
`distribution`. A value starts as the weight at its first position, so that weights keep the law they were drawn from;
some values (one in e^10 at a sparsity of 0.9) have no position, start at 0 and are counted all the same.

`l1` and the optimizer's weight decay act on the values, not on each of their positions. The input projections of
MultiheadAttention stay dense. `period` and `until` have no effect. Attach before wrapping a model in
DistributedDataParallel, which would go on exchanging the dense gradients.
"""

from typing import ClassVar

from regrow.methods.method import Method, check, method


@method
class Hashed(Method):
    """Positions that share values."""

    rewires: ClassVar[bool] = False
    storage: ClassVar[str | None] = "hashed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.granularity == "weight", "Hashed shares the values of single weights; use granularity='weight'")
