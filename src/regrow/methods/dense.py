"""Dense: the baseline that keeps every weight.

Its `sparsity` is accepted and has no effect, so that swapping the method is the only change between runs; `l1` acts
on the tensors that would be sparse.
"""

from typing import ClassVar

from regrow.methods.method import Method, method


@method
class Dense(Method):
    """All weights, always. `sparsity`: has no effect."""

    sparsity: float = 0.0
    rewires: ClassVar[bool] = False

    def budget(self, num_weights: int) -> int:
        return num_weights
