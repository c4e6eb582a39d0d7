"""What packed storage costs under torch.compile: a training step of a language model over bytes, masked and packed.

    python -m benchmarks.packed_compile [--device cpu|cuda] [--width 64] [--depth 2] [--batch 4] [--context 64]

`DSR` with the same sparsity on both sides, AdamW, on a GPU in bfloat16. The sides take turns in blocks, and medians
count; no rewiring is due in them. `x masked` is the ratio to the masked step of the same mode. `beside` is what is
held between steps, and what a step allocates beyond one of the dense network that drops each gradient as soon as it
is there and so keeps activations alone, in float32, in bytes for each position that may be active; `bound` is what
values, gradient, optimizer state, index and one dense layer take. `breaks` counts what interrupts the graph of the
model, `recompiles` what 20 rewirings compile anew.
"""

import argparse
import warnings
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import regrow
from benchmarks.measure import peak_allocated_bytes, seconds, table
from regrow.storage.packed.storage import PackedStorage

NEVER, NUM_REWIRINGS = 10**9, 20
STORAGES = ("dense", "packed")


class Block(nn.Module):
    """Attention and two layers behind it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = max(1, width // 64)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inputs(self.first_norm(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        read = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(read.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.second_norm(x))))


class ByteGPT(nn.Module):
    """Reads bytes, and says which comes next."""

    def __init__(self, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Training:
    """A model in training on one random batch; dense without a storage."""

    def __init__(self, arguments: argparse.Namespace, storage: str | None, mode: str, period: int = NEVER) -> None:
        torch.manual_seed(0)
        self.device = torch.device(arguments.device)
        self.is_mixed = self.device.type == "cuda"
        self.model = ByteGPT(arguments.width, arguments.depth, arguments.context).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.text = torch.randint(256, (arguments.batch, arguments.context + 1), device=self.device)
        if storage is not None:
            method = regrow.DSR(sparsity=arguments.sparsity, period=period)
            self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if mode == "compiled" else self.model

    def step(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_mixed):
            logits = self.forward(self.text[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), self.text[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held(self) -> int:
        """Bytes that stay between steps: parameters, optimizer state, masks or index."""
        state = (value for own in self.optimizer.state.values() for value in own.values() if isinstance(value, Tensor))
        tensors = [*self.model.parameters(), *state]
        extra = 0
        if isinstance(self.sparse.storage, PackedStorage):
            extra = self.sparse.storage.index_bytes
        else:
            tensors += self.sparse.masks().values()
        return extra + sum(tensor.nbytes for tensor in tensors)

    def peak(self) -> int:
        """The most that a step in float32 allocates."""
        self.is_mixed = False
        for _ in range(2):
            self.step()
        return peak_allocated_bytes(self.step, self.device)

    def drop_gradients(self) -> None:
        """Let each go as soon as it is there."""
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", None))


def times(arguments: argparse.Namespace, mode: str) -> dict[str, float]:
    """Median milliseconds of a step with each storage."""
    trainings = {storage: Training(arguments, storage, mode) for storage in STORAGES}
    for training in trainings.values():
        training.step()
    taken: dict[str, list[float]] = {storage: [] for storage in STORAGES}
    for block in range(arguments.blocks + 1):
        for storage, training in trainings.items():
            each = seconds(lambda step=training.step: [step() for _ in range(arguments.steps)], training.device)
            if block > 0:
                taken[storage].append(1000 * each / arguments.steps)
    return {storage: median(values) for storage, values in taken.items()}


def memory(arguments: argparse.Namespace, mode: str, storage: str) -> tuple[float, float]:
    """Bytes per position beside activations, and what they should be at most."""
    training = Training(arguments, storage, mode)
    sizes = [int(torch.Size(layer.shape).numel()) for layer in training.sparse.layers]
    everything, num_active = sum(sizes), training.sparse.active
    peak, held = training.peak(), training.held()
    del training
    plain = Training(arguments, None, mode)
    plain.drop_gradients()
    others = sum(parameter.nbytes for parameter in plain.model.parameters()) - 4 * everything
    of_step = max(peak - plain.peak() - others, 0)
    index = 8 if arguments.device == "cpu" else 4
    bound = (16 + index) * num_active + 4 * max(sizes) if storage == "packed" else 17 * everything
    return (held - 3 * others + of_step) / everything, bound / everything


def graphs(arguments: argparse.Namespace, storage: str) -> tuple[int, int]:
    """Graph breaks of the model, and what 20 rewirings compile anew."""
    torch._dynamo.reset()
    training = Training(arguments, storage, "eager", period=1)
    breaks = torch._dynamo.explain(training.model)(training.text[:, :-1]).graph_break_count
    torch._dynamo.reset()
    counters.clear()
    training.forward = torch.compile(training.model)
    for _ in range(NUM_REWIRINGS + 1):
        training.step()
    assert len(training.sparse.history) >= NUM_REWIRINGS
    return breaks, counters["stats"]["unique_graphs"] - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="in each block")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    rows = [["mode", "storage", "ms", "x masked", "beside", "bound", "breaks", "recompiles"]]
    for mode in ("eager", "compiled"):
        torch._dynamo.reset()
        taken = times(arguments, mode)
        for storage in STORAGES:
            torch._dynamo.reset()
            beside, bound = memory(arguments, mode, storage)
            of_graph = map(str, graphs(arguments, storage)) if mode == "compiled" else ("", "")
            ratio = taken[storage] / taken["dense"]
            name = "masked" if storage == "dense" else storage
            rows.append(
                [mode, name, f"{taken[storage]:.2f}", f"{ratio:.3f}", f"{beside:.2f}", f"{bound:.2f}", *of_graph]
            )
    print(table(rows))


if __name__ == "__main__":
    main()
