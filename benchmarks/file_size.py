"""How long the files of `regrow.save` are, beside the least that values and their positions can take.

    python -m benchmarks.file_size [--models wrn_28_2 ...] [--sparsities 0.9 0.99]

Fresh networks, sparse where the paper has them sparse; `mlp` is 784-1024-1024-10. In bytes: `values` are all numbers
that are stored, buffers included; `entropy` is that of the positions, log2(binomial(n, k)) bits for each layer with k
of n weights active; `positions` what they take in the file; `names` is its header. `of entropy` are the positions over
it, `of both` the file over values and entropy. In milliseconds, the best of five: `decoded` is what decoding the
positions takes, `loaded` a call of `regrow.load_tensors`.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

import regrow
from benchmarks.measure import seconds, table
from regrow.files.format import read_stored
from regrow.lab.models import PAPER, build, sparse_layers

CPU = torch.device("cpu")
SPARSITIES = {"lenet_300_100": [0.9, 0.95, 0.99], "mlp": [0.9, 0.95, 0.99], "wrn_28_2": [0.9], "resnet_50": [0.9]}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, **{name: partial(build, name) for name in PAPER}}


def measure(name: str, sparsity: float, path: Path) -> list[str]:
    """One row: a network saved, described and loaded."""
    model = NETWORKS[name]()
    layers = None if name == "mlp" else sparse_layers(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=sparsity), layers=layers)
    regrow.save(path, model, sparse)
    told = regrow.describe(path)
    values = told.num_bytes - told.num_header_bytes - told.num_position_bytes
    entropy = told.entropy_of_positions
    lengths = [values, round(entropy), told.num_position_bytes, told.num_header_bytes, told.num_bytes]
    stored = read_stored(path)
    decoded = milliseconds(lambda: [stored.part(layer.name) for layer in told.layers])
    loaded = milliseconds(lambda: regrow.load_tensors(path))
    return [
        name,
        f"{sparsity:g}",
        *(f"{length:,}" for length in lengths),
        f"{told.num_position_bytes / entropy:.3f}",
        f"{told.num_bytes / (values + entropy):.3f}",
        f"{decoded:.1f}",
        f"{loaded:.1f}",
    ]


def milliseconds(work: Callable[[], object]) -> float:
    return 1000 * min(seconds(work, CPU) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SPARSITIES), choices=SPARSITIES)
    parser.add_argument("--sparsities", nargs="+", type=float, help="by default some for each network")
    arguments = parser.parse_args()
    columns = ["values", "entropy", "positions", "names", "file"]
    rows = [["network", "sparsity", *columns, "of entropy", "of both", "decoded", "loaded"]]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            for sparsity in arguments.sparsities or SPARSITIES[name]:
                rows.append(measure(name, sparsity, Path(folder) / "model"))
    print(table(rows))


if __name__ == "__main__":
    main()
