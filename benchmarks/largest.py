"""How large a GPT fits: the widest that trains, dense and packed, with what its training holds, part by part.

    python -m benchmarks.largest [--device cuda] [--depth 24] [--sparsity 0.95] [--batch 1] [--context 256]
    python -m benchmarks.largest --device cpu --depth 2 --widths 64 128        # only these, to see that it works

AdamW on both sides, all numbers float32. A width fits if three steps do, in the last of which `SET` rewires; widths
are tried in multiples of 256 around what the formula says, until one fits and the next does not. The packed network is
built on the meta device, never dense, and has a parameter group and with it a budget for each block. `rest` is what a
step needs at its peak beyond values, gradients, moments and index: activations, the layer at work, embeddings, norms.
"""

import argparse
import gc
import os
from dataclasses import dataclass
from math import isqrt
from time import perf_counter

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import regrow
from benchmarks.measure import peak_allocated_bytes, seconds, table
from benchmarks.packed_compile import ByteGPT
from regrow.storage.optimizer_state import state_like

GRAIN, GIB = 256, 2**30
REWIRES_AT = 3


@dataclass(frozen=True)
class Fitting:
    """A width that trains, in bytes and milliseconds."""

    width: int
    positions: int
    values: int
    gradients: int
    moments: int
    index: int
    peak: int
    begin: float
    step: float
    rewiring: float

    def row(self, storage: str) -> list[str]:
        parts = [self.values, self.gradients, self.moments, self.index]
        sizes = [f"{own / GIB:.4g}" for own in (*parts, self.peak - sum(parts), self.peak)]
        times = [f"{self.begin / 1000:.1f} s", f"{self.step:.0f} ms", f"{self.rewiring:.0f} ms"]
        return [storage, str(self.width), f"{self.positions / 1e9:.3g} G", f"{self.values / 4e9:.3g} G", *sizes, *times]


def normal(name: str, shape: tuple[int, ...], count: int, generator: torch.Generator) -> Tensor:
    """First values as GPT-2's, drawn where they stay."""
    return torch.randn(count, device=torch.get_default_device()).mul_(0.02)


def train(arguments: argparse.Namespace, storage: str, width: int) -> Fitting:
    """Build a network, take three steps, and say what was held and how long they took."""
    start, device = perf_counter(), torch.device(arguments.device)
    torch.set_default_device(device)
    with torch.device("meta" if storage == "packed" else device):
        model = ByteGPT(width, arguments.depth, arguments.context)
    model.to(torch.float32)
    layers = [name for name, own in model.blocks.named_parameters(prefix="blocks") if own.dim() == 2]
    groups = [{"params": list(block.parameters())} for block in model.blocks]
    others = [*model.bytes.parameters(), *model.places.parameters(), *model.norm.parameters(), *model.head.parameters()]
    optimizer = torch.optim.AdamW([*groups, {"params": others}], lr=1e-4, fused=True)
    positions = sum(model.get_parameter(name).numel() for name in layers)
    sparse = None
    if storage == "packed":
        method = regrow.SET(sparsity=arguments.sparsity, period=REWIRES_AT)
        sparse = regrow.attach(model, optimizer, method, layers=layers, storage=regrow.Packed(init=normal))
    begin = 1000 * (perf_counter() - start)
    text = torch.randint(256, (arguments.batch, arguments.context + 1))

    def step() -> None:
        logits = model(text[:, :-1])
        cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    taken = seconds(step, device)
    weights = [model.get_parameter(name) for name in layers] if sparse is None else sparse.storage.parameters
    parts = [
        sum(own.nbytes for own in weights),
        sum(own.grad.nbytes for own in weights if own.grad is not None),
        sum(tensor.nbytes for own in weights for tensor in state_like(optimizer, own)),
        0 if sparse is None else sparse.storage.index_bytes,
    ]
    optimizer.zero_grad()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else parts[0] + parts[2] + parts[3]
    clock = perf_counter()
    peak = before + peak_allocated_bytes(step, device)
    rewiring = 1000 * (perf_counter() - clock)
    assert sparse is None or len(sparse.history) == 1
    return Fitting(width, positions, *parts, peak, begin, 1000 * taken, rewiring)


def attempt(arguments: argparse.Namespace, storage: str, width: int) -> Fitting | None:
    """None where the memory does not suffice."""
    try:
        fitting: Fitting | None = train(arguments, storage, width)
    except torch.OutOfMemoryError:
        fitting = None
    gc.collect()
    if arguments.device == "cuda":
        torch.cuda.empty_cache()
    told = "does not fit" if fitting is None else f"fits, {fitting.peak / GIB:.1f} GiB at the peak"
    print(f"{storage}, width {width}: {told}", flush=True)
    return fitting


def likely_width(arguments: argparse.Namespace, storage: str) -> int:
    """What the formula says of all memory that there is."""
    held = 16.0 if storage == "dense" else 20 * (1 - arguments.sparsity)
    per_square = held * 12 * arguments.depth + 3 * 16  # and three copies of the largest layer
    free, _ = torch.cuda.mem_get_info()
    return max(isqrt(int(free / per_square)) // GRAIN, 1) * GRAIN


def widest(arguments: argparse.Namespace, storage: str) -> Fitting:
    width = likely_width(arguments, storage)
    found = attempt(arguments, storage, width)
    while found is None and width > GRAIN:
        width -= GRAIN
        if found := attempt(arguments, storage, width):
            return found
    assert found is not None, "not even the smallest fits"
    while larger := attempt(arguments, storage, found.width + GRAIN):
        found = larger
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--storages", nargs="+", choices=("dense", "packed"), default=("dense", "packed"))
    parser.add_argument("--widths", nargs="+", type=int, help="measure these instead of searching")
    arguments = parser.parse_args()
    if arguments.device != "cuda" and arguments.widths is None:
        parser.error("say --widths: what fits is searched on a GPU only")
    torch.set_float32_matmul_precision("high")
    sizes = ["values", "gradients", "moments", "index", "rest", "GiB in all"]
    rows = [["storage", "width", "positions", "weights", *sizes, "begins in", "step", "rewires"]]
    for storage in arguments.storages:
        if arguments.widths is None:
            rows.append(widest(arguments, storage).row(storage))
        else:
            found = (attempt(arguments, storage, width) for width in arguments.widths)
            rows += [fitting.row(storage) for fitting in found if fitting is not None]
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
