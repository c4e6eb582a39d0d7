"""What of a model stays dense: told in every summary, and by a warning where nobody chose that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.names import named_parameters
from regrow.sparsifier.layers import trained_parameters


@dataclass(frozen=True)
class LeftDense:
    """The weights of each tensor that trains and stays dense, by name, and which of them blocks do not divide."""

    num_weights: Mapping[str, int]
    undivided: tuple[str, ...] = ()

    def __str__(self) -> str:
        """
        >>> print(LeftDense({"embed.weight": 1_000, "head.bias": 10}))
        left dense: 2 tensors, 1,010 weights (largest: embed.weight)
        """
        if not self.num_weights:
            return ""
        count = f"{len(self.num_weights)} tensor{'s' if len(self.num_weights) > 1 else ''}"
        largest = max(self.num_weights, key=self.num_weights.__getitem__)
        told = f"left dense: {count}, {sum(self.num_weights.values()):,} weights (largest: {largest})"
        if not self.undivided:
            return told
        return f"{told}\ndense because blocks do not divide them: {', '.join(self.undivided)}"


def left_dense(
    model: nn.Module, optimizer: Optimizer, sparse: Sequence[Tensor], undivided: tuple[str, ...]
) -> LeftDense:
    """What trains beside the sparse parameters."""
    ours = {id(parameter) for parameter in sparse}
    trained = trained_parameters(model, optimizer)
    return LeftDense({name: own.numel() for name, own in trained.items() if id(own) not in ours}, undivided)


def of_much(model: nn.Module, optimizer: Optimizer, left: LeftDense) -> str | None:
    """A sentence where most of the weights in matrices stay dense, or do not train at all, and nobody chose that."""
    matrices = {name: own.numel() for name, own in named_parameters(model) if own.ndim >= 2}
    trained = {name: matrices[name] for name in trained_parameters(model, optimizer) if name in matrices}
    dense = {name: count for name, count in trained.items() if name in left.num_weights}
    at_rest = sum(matrices.values()) - sum(trained.values())
    if 2 * sum(dense.values()) > sum(trained.values()):
        return (
            f"{sum(dense.values()):,} of {sum(trained.values()):,} weights in matrices stay dense (largest: "
            f"{max(dense, key=dense.__getitem__)}), as they are of no kind that is made sparse unless it is named; say "
            "what is to be sparse with layers=[...]"
        )
    if 2 * at_rest > sum(matrices.values()):
        return (
            f"{at_rest:,} of {sum(matrices.values()):,} weights in matrices are frozen, or not held by the optimizer, "
            f"and stay as they are; only the {sum(trained.values()):,} others can be sparse: train more of the model, "
            "or say with layers=[...] that this is meant"
        )
    return None
