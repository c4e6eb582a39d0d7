"""Latency and memory of a trained network in use: packed beside dense, compiled or not, torch's CSR and onnxruntime.

    python -m benchmarks.inference [--networks mlp wrn_28_2 gpt_block] [--sparsities 0.9 0.95 0.99] [--batches 1 64]
                                   [--threads 1 2] [--seconds 4] [--memory]

All sides compute the same network from the same file, in evaluation, and are compared before anything is timed.
Milliseconds, medians of blocks that take turns in one process, for each number of threads; `dense / packed` is how many
times as fast packed is. torch has no CSR convolutions. `gpt_block` is a block of a GPT of width 1024, given 64 tokens
for each sample of a batch.

With `--memory`: MB that a fresh process holds more after loading the file and passing a batch than before, and in
brackets how much more at most on the way. What programs take, torch and those that a side needs besides, is below.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import regrow
from benchmarks.measure import held_and_peak_bytes, interleaved, resident_bytes, seconds, table
from regrow.files.export import as_csr
from regrow.lab.models import build
from regrow.lab.models.transformer import Block

CPU = torch.device("cpu")
SIDES = ("packed", "packed, compiled", "dense", "dense, compiled", "CSR", "onnxruntime")
Model = Callable[[Tensor], Tensor]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def tiny() -> nn.Module:
    """Something of all kinds."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 8))


TINY = "tiny"
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (784,)),
    "wrn_28_2": (partial(build, "wrn_28_2"), (3, 32, 32)),
    "gpt_block": (partial(Block, 1024, 16, is_causal=True), (64, 1024)),
    TINY: (tiny, (3, 8, 8)),
}
NAMES = [name for name in NETWORKS if name != TINY]


class CSR(nn.Module):
    """A linear layer with a matrix of torch's own sparse kind."""

    def __init__(self, dense: nn.Linear, mask: Tensor) -> None:
        super().__init__()
        self.matrix, self.bias = as_csr(dense.weight.detach(), mask), dense.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) == 1:
            return torch.addmv(self.bias, self.matrix, rows[0]).view(*x.shape[:-1], -1)
        return torch.addmm(self.bias[:, None], self.matrix, rows.t()).t().reshape(*x.shape[:-1], -1)


def on_meta(network: str) -> nn.Module:
    with torch.device("meta"):
        return NETWORKS[network][0]()


def inputs(network: str, batch: int) -> Tensor:
    return torch.randn(batch, *NETWORKS[network][1], generator=torch.Generator().manual_seed(1))


def make_files(network: str, sparsity: float, folder: Path) -> Path:
    """A network with a random topology, as a training would leave it, and the same as ONNX."""
    path = folder / f"{network}-{sparsity}.safetensors"
    if not path.exists():
        torch.manual_seed(0)
        model = NETWORKS[network][0]()
        sparse = regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=sparsity))
        regrow.save(path, model, sparse)
        regrow.export_onnx(path.with_suffix(".onnx"), model, inputs(network, 2))
    return path


def sides_of(network: str) -> list[str]:
    return [side for side in SIDES if side != "CSR" or network != "wrn_28_2"]


def ready(side: str, network: str, path: Path, threads: int) -> Model:
    """The network of a file, ready for batches."""
    if side == "onnxruntime":
        return in_onnxruntime(path.with_suffix(".onnx"), threads)
    model = on_meta(network)
    is_compiled = side.endswith("compiled")
    if side.startswith("packed"):
        regrow.load(path, model, storage="packed")
        return torch.compile(model) if is_compiled else model
    masks = regrow.load(path, model)
    if side == "CSR":
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear):
                model.set_submodule(name, CSR(module, masks[f"{name}.weight"]))
    model.eval()
    return torch.compile(model) if is_compiled else model


def in_onnxruntime(path: Path, threads: int) -> Model:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


@torch.no_grad()
def latency(network: str, path: Path, batches: Sequence[int], threads: int, budget: float) -> list[list[str]]:
    """For each batch the milliseconds of each side."""
    torch.set_num_threads(threads)
    torch.compiler.reset()
    models = {side: ready(side, network, path, threads) for side in sides_of(network)}
    rows = []
    for batch in batches:
        x = inputs(network, batch)
        expected = models["dense"](x)
        for model in models.values():
            torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-4)
        works = {side: (lambda: None, partial(model, x)) for side, model in models.items()}
        all_once = sum(seconds(work, CPU) for _, work in works.values())
        took = interleaved(works, CPU, max(5, min(1000, int(budget / all_once))))
        cells = [f"{took[side]:.3f}" if side in took else "" for side in SIDES]
        rows.append([str(batch), *cells, f"{took['dense'] / took['packed']:.2f}x"])
    return rows


def latencies(network: str, files: Mapping[float, Path], arguments: argparse.Namespace) -> str:
    """A table of a network."""
    rows = [["network", "threads", "batch", "sparsity", *SIDES, "dense / packed"]]
    for threads in arguments.threads:
        for sparsity, path in files.items():
            for batch, *took in latency(network, path, arguments.batches, threads, arguments.seconds):
                rows.append([network, str(threads), batch, f"{sparsity:g}", *took])
    return table(rows)


def memory(network: str, files: Mapping[float, Path], batches: Sequence[int]) -> str:
    """A table of what each side takes in a process of its own, and what the programs take beside it."""
    rows, programs = [["network", "batch", "sparsity", *SIDES]], {}
    for batch in batches:
        for sparsity, path in files.items():
            cells = dict.fromkeys(SIDES, "")
            for side in sides_of(network):
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.inference",
                    "--child",
                    side,
                    network,
                    str(path),
                    str(batch),
                ]
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                before, held, peak = (number / 1e6 for number in json.loads(told))
                cells[side], programs[side] = f"{held:.1f} ({peak:.1f})", f"{before:.0f}"
            rows.append([network, str(batch), f"{sparsity:g}", *cells.values()])
    rows.append(["programs", "", "", *(programs.get(side, "") for side in SIDES)])
    return table(rows)


@torch.no_grad()
def child(side: str, network: str, path: str, batch: str) -> None:
    """Print how many bytes are held before, and it takes to load a network and pass a batch.

    All that is imported on the way is brought by a tiny network, and by building this one once.
    """

    def load_and_pass(name: str, file: Path) -> object:
        model, x = ready(side, name, file, 1), inputs(name, int(batch))
        return model, model(x), model(x)

    load_and_pass(TINY, Path(path).with_name(f"{TINY}-0.5.safetensors"))
    on_meta(network)
    print(json.dumps([resident_bytes(), *held_and_peak_bytes(lambda: load_and_pass(network, Path(path)))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.95, 0.99])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row, about")
    parser.add_argument("--memory", action="store_true", help="MB instead of milliseconds")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.child:
        child(*arguments.child)
        return
    for network in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            files = {sparsity: make_files(network, sparsity, Path(folder)) for sparsity in arguments.sparsities}
            if arguments.memory:
                make_files(TINY, 0.5, Path(folder))
                print(memory(network, files, arguments.batches), flush=True)
            else:
                print(latencies(network, files, arguments), flush=True)


if __name__ == "__main__":
    main()
