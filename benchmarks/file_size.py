"""How long the files of `regrow.save` are beside the description length of what is in them.

    python -m benchmarks.file_size [--models wrn_28_2 ...] [--sparsities 0.9 0.99]

Fresh networks, sparse where the paper has them sparse. Bytes; `header` is what names and shapes take. The description
length is that of all numbers in the file, buffers included; `of parameters` is the paper's, without them.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import regrow
from benchmarks.measure import table
from regrow.lab.models import PAPER, build, sparse_layers
from regrow.size import size_of


def measure(name: str, sparsity: float, path: Path) -> list[str]:
    """One row: a network saved and described."""
    model = build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=sparsity), layers=sparse_layers(model))
    regrow.save(path, model, sparse)
    found = regrow.describe(path)
    of_parameters = size_of(model, sparse.masks()).bits // 8
    lengths = [f"{number:,}" for number in (found.description_length, found.num_header_bytes, of_parameters)]
    beyond = [f"{100 * (found.num_bytes / length - 1):+.2f} %" for length in (found.description_length, of_parameters)]
    return [name, f"{sparsity:g}", *lengths[:2], beyond[0], lengths[2], beyond[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PAPER), choices=PAPER)
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.8, 0.9, 0.95, 0.99])
    arguments = parser.parse_args()
    rows = [["network", "sparsity", "description length", "header", "file", "of parameters", "file"]]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            rows += [measure(name, sparsity, Path(folder) / "model") for sparsity in arguments.sparsities]
    print(table(rows))


if __name__ == "__main__":
    main()
