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
    - {pattern: sparsity}: layers named get theirs, the others share what is left of the budget uniformly. A pattern is
      that of a layer or of a module. A layer's name wins over a module's, and that over wildcards, of which the
      last wins. Where no others are left, the given densities are scaled together to meet the budget.
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
    patterns_first = sorted(sparsities, key=lambda pattern: (not set(pattern) & set("*?["), pattern in names))
    return {names.index(name): sparsities[own] for own in patterns_first for name in match(own, names, True)}


def check_together(layers: Sequence[Layer], budget: int, distribution: Distribution) -> None:
    """Refuse sparsities of all layers that make another one of the network, but for rounding."""
    named = _named(layers, distribution) if isinstance(distribution, Mapping) else {}
    if len(named) < len(layers):
        return
    made = round(sum((1 - named[i]) * layer.num_weights for i, layer in enumerate(layers)))
    everything = sum(layer.num_weights for layer in layers)
    slack = sum(layer.unit_size for layer in layers) + everything // 1000
    if abs(made - budget) > slack:
        raise ValueError(
            f"the sparsities given for all {len(layers)} layers leave {made:,} of {everything:,} weights, which is a "
            f"sparsity of {1 - made / everything:.4g} where the method has {1 - budget / everything:.4g}; give the "
            "method that one, or name fewer layers: the others then share what is left"
        )
