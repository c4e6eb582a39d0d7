"""How many units of each layer are active at the start."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from regrow.core.apportion import apportion
from regrow.core.names import match
from regrow.core.units import Layer

Distribution = Literal["uniform", "er", "erk"] | Mapping[str, float]
DISTRIBUTIONS = get_args(Literal["uniform", "er", "erk"])


def starting_counts(layers: Sequence[Layer], budget: int, distribution: Distribution) -> list[int]:
    """Active units per layer: together the budget, shared as the distribution says, at least one unit each.

    - "uniform": every layer equally dense.
    - "er" (Erdos-Renyi; SET): a layer's density is proportional to (inputs + outputs) / (inputs * outputs).
    - "erk" (RigL): likewise with the kernel's dimensions among them: sum(shape) / prod(shape).
    - {pattern: sparsity}: layers named get theirs, the others share what is left of the budget uniformly; where no
      others are left, the given densities are scaled together to meet the budget.
    """
    counts = [1] * len(layers)
    smallest = sum(layer.unit_size for layer in layers)
    if budget < smallest:
        raise ValueError(
            f"a budget of {budget:,} weights cannot leave one unit in each of {len(layers)} layers ({smallest:,} "
            "weights); lower the sparsity, choose fewer layers or a finer granularity"
        )
    loose = list(range(len(layers)))
    if isinstance(distribution, Mapping):
        shares = [layer.num_weights * 1.0 for layer in layers]
        named = _named(layers, distribution)
        for i, sparsity in named.items():
            shares[i] = layers[i].num_weights * (1 - sparsity)
            counts[i] = max(1, round((1 - sparsity) * layers[i].num_units))
        loose = [i for i in loose if i not in named] or loose
    else:
        shares = [_share(layer, distribution) for layer in layers]

    while True:
        fixed = [i for i in range(len(layers)) if i not in set(loose)]
        left = budget - sum(counts[i] * layers[i].unit_size for i in fixed)
        room = sum(layers[i].num_weights for i in loose)
        if not sum(layers[i].unit_size for i in loose) <= left <= room:
            raise ValueError(
                f"the sparsities given for single layers leave {left:,} weights for the other {len(loose)} layers, "
                f"which can hold {room:,}; change them or the network's sparsity"
            )
        pick = apportion(
            [shares[i] for i in loose],
            left,
            [layers[i].num_units for i in loose],
            [layers[i].unit_size for i in loose],
        )
        for i, count in zip(loose, pick, strict=True):
            counts[i] = max(1, count)
        if all(pick):
            return counts
        loose = [i for i, count in zip(loose, pick, strict=True) if count]


def _share(layer: Layer, distribution: str) -> float:
    """Weights this layer would get, up to a factor common to all layers."""
    if distribution == "uniform" or len(layer.shape) < 2:
        return layer.num_weights
    if distribution == "er":
        outputs, inputs = layer.shape[:2]
        return layer.num_weights * (inputs + outputs) / (inputs * outputs)
    return sum(layer.shape)


def _named(layers: Sequence[Layer], sparsities: Mapping[str, float]) -> dict[int, float]:
    names = [layer.name for layer in layers]
    return {names.index(name): sparsity for pattern, sparsity in sparsities.items() for name in match(pattern, names)}
