"""Test accuracies to hold results against, by network, data, method and sparsity."""

from dataclasses import dataclass

NOTE = (
    "Reference: test accuracies from per-run files published with the sparse_learning project, apparently of the "
    "paper's authors, mean ± sd over 5 runs of full length. Whether static networks trained once or twice that long "
    "is not stated there. DeepR as it was run there loses half of its weights at the first step: a lower bound."
)
IMAGENET_NOTE = (
    "Reference: top-1 test accuracies as printed in the paper, full length; it does not say over how many runs."
)


@dataclass(frozen=True)
class Reference:
    """`sd` is None where only one number is known."""

    mean: float
    sd: float | None = None


_Table = dict[str, dict[float | None, tuple[float, float | None]]]

_LENET: _Table = {
    "DSR": {0.99: (97.75, 0.04), 0.98: (98.14, 0.14), 0.95: (98.32, 0.08), 0.9: (98.44, 0.10)},
    "Compressed": {0.99: (97.47, 0.21), 0.98: (98.12, 0.10), 0.95: (98.47, 0.06), 0.9: (98.55, 0.03)},
    "Static": {0.99: (49.5, 5.9), 0.98: (82.8, 6.5), 0.95: (96.68, 0.03), 0.9: (97.94, 0.09)},
}
_WIDE_RESNET: _Table = {
    "DSR": {0.9: (93.59, 0.18), 0.8: (94.40, 0.11), 0.5: (94.73, 0.10)},
    "Compressed": {0.9: (93.75, 0.08), 0.8: (94.13, 0.13), 0.5: (94.59, 0.13)},
    "SET": {0.9: (93.28, 0.12), 0.8: (94.25, 0.15), 0.5: (94.76, 0.09)},
    "Static": {0.9: (92.04, 0.31), 0.8: (93.48, 0.11), 0.5: (94.28, 0.14)},
    "DeepR": {0.9: (91.41, 0.13), 0.8: (92.36, 0.19), 0.5: (92.92, 0.18)},
    "Full dense": {None: (94.70, None)},
}
_RESNET: _Table = {
    "Full dense": {None: (74.9, None)},
    "Thin dense": {0.8: (72.4, None), 0.9: (70.7, None)},
    "Static": {0.8: (71.6, None), 0.9: (67.8, None)},
    "DeepR": {0.8: (71.7, None), 0.9: (70.2, None)},
    "SET": {0.8: (72.6, None), 0.9: (70.4, None)},
    "DSR": {0.8: (73.3, None), 0.9: (71.6, None)},
    "Compressed": {0.8: (73.2, None), 0.9: (70.3, None)},
    "HashedNet": {0.8: (70.0, None), 0.9: (66.9, None)},
    "DSR, kernels": {0.8: (72.6, None), 0.9: (70.2, None)},
}
_TABLES = {
    ("lenet_300_100", "mnist"): _LENET,
    ("wrn_28_2", "cifar10"): _WIDE_RESNET,
    ("resnet_50", "imagenet"): _RESNET,
}


def reference_for(model: str, data: str, label: str, sparsity: float | None) -> Reference | None:
    """The reference of a label at one of the paper's sparsities (None for a dense network), where there is one.

    >>> reference_for("lenet_300_100", "mnist", "DSR", 0.99)
    Reference(mean=97.75, sd=0.04)
    """
    by_sparsity = _TABLES.get((model, data), {}).get("Static" if label == "Static, 1x" else label, {})
    found = by_sparsity.get(None if sparsity is None else round(sparsity, 6))
    return Reference(*found) if found else None


def note_for(model: str, data: str) -> str:
    """Where the references of an experiment come from; empty where there are none."""
    if (model, data) not in _TABLES:
        return ""
    return IMAGENET_NOTE if model == "resnet_50" else NOTE
