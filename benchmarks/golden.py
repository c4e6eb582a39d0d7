"""Whether a change of the library left every result as it was, bit for bit.

    python -m benchmarks.golden [--against REVISION] [--only PATTERN] [--out FILE]

Trains small networks under every method, in every storage, with many kinds of loops, and prints for each a digest of
all that is left at the end: tensors of the model, state of the optimizer, masks, history. With `--against` the same
cases, from this very file, are run in a checkout of that revision, too, and what differs is told. Digests hold for one
machine and one version of torch. `file ...` cases digest a whole file, metadata included.

It calls only what is public, and where a name has changed both names, so that it runs before and after a refactoring.
Packed layers that choose their kernels by measuring them are left out: what they compute depends on the clock.
"""

import argparse
import copy
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

import regrow
from benchmarks.checkout import checkout_of, paths_of

NUM_STEPS = 18
DENSE, SPARSE_KERNELS, DENSE_KERNELS = "dense", "packed with sparse kernels", "packed with dense kernels"
STORAGES = (DENSE, SPARSE_KERNELS, DENSE_KERNELS)
PACKED = STORAGES[1:]
FAILED = "failed: "

OFTEN = {"sparsity": 0.8, "period": 4, "until": 40}
METHODS: dict[str, Callable[..., Any]] = {
    "DSR": lambda **own: regrow.DSR(**{**OFTEN, "threshold": 0.005, **own}),
    "SET": lambda **own: regrow.SET(**{**OFTEN, **own}),
    "DeepR": lambda **own: regrow.DeepR(**{"sparsity": 0.8, "temperature": 1e-3, "l1": 1e-3, **own}),
    "DeepR over the network": lambda **own: METHODS["DeepR"](scope="network", **own),
    "RigL": lambda **own: regrow.RigL(**{**OFTEN, **own}),
    "SNFS": lambda **own: regrow.SNFS(**{**OFTEN, **own}),
    "Gradual": lambda **own: regrow.Gradual(**{**OFTEN, "until": 16, "begin": 2, **own}),
    "Static": lambda **own: regrow.Static(**{**OFTEN, **own}),
    "Dense": lambda **own: regrow.Dense(**{**OFTEN, **own}),
    "Hashed": lambda **own: regrow.Hashed(**{**OFTEN, **own}),
}
PACKABLE = ("DSR", "SET", "DeepR", "DeepR over the network", "RigL", "Static", "Dense")
COARSE = ("DSR", "SET", "RigL", "SNFS", "Gradual", "Static")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.003, momentum=0.5),
    "still": lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9),
}


class Blocks(nn.Module):
    """Linear layers and norms that packed storage computes as one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(20, 40), nn.BatchNorm1d(40)
        self.fc2, self.norm2 = nn.Linear(40, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        linear_norm = regrow.linear_norm if hasattr(regrow, "linear_norm") else regrow.storage.packed.linear_norm
        return linear_norm(self.fc2, self.norm2, linear_norm(self.fc1, self.norm1, x, relu=True))


class Attention(nn.Module):
    """Attention, and two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(20, 2, batch_first=True)
        self.first, self.second, self.last = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        words = x[:, None] * torch.linspace(-1, 1, 3, dtype=x.dtype, device=x.device)[:, None]
        return self.last(relu(self.second(relu(self.first(self.attention(words, words, words)[0].mean(1))))))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(),
        nn.Linear(40, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5),
    )  # fmt: skip


def conv() -> nn.Module:
    """A full convolution, one in groups, a 1x1."""
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ReLU(),
        nn.Conv2d(8, 12, 1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5),
    )  # fmt: skip


def wide() -> nn.Module:
    """Layers that each fill a chunk of the row, or more, and small ones before, between and after."""
    return nn.Sequential(
        nn.Linear(20, 550), nn.ReLU(), nn.Linear(550, 500), nn.ReLU(), nn.Linear(500, 40), nn.ReLU(),
        nn.Linear(40, 600), nn.ReLU(), nn.Linear(600, 450), nn.ReLU(), nn.Linear(450, 5),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "conv": conv,
    "wide": wide,
    "blocks": Blocks,
    "attention": Attention,
}


def storage_options(storage: str) -> dict[str, Any]:
    """How `attach` is told about a storage."""
    if storage == DENSE:
        return {}
    kernels = "sparse" if storage == SPARSE_KERNELS else "dense"
    if hasattr(regrow, "Packed"):
        return {"storage": regrow.Packed(kernels=kernels)}
    return {"storage": "packed", "kernels": kernels}


class Training:
    """A small network in training on some random batches."""

    def __init__(
        self,
        method: Any,
        network: str = "mlp",
        optimizer: str = "SGD",
        storage: str = DENSE,
        prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
        in_groups: bool = False,
        device: str = "cpu",
        seed: int = 3,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        shape = (4, 6, 6) if network == "conv" else (20,)
        self.model = prepare(NETWORKS[network]()).to(device)
        parameters = list(self.model.parameters())
        dtype = parameters[-1].dtype
        self.batches = [
            (torch.randn(16, *shape).to(device, dtype), torch.randint(5, (16,)).to(device)) for _ in range(3)
        ]
        groups = [{"params": parameters[1::2]}, {"params": parameters[::4], "lr": 0.02}, {"params": parameters[2::4]}]
        self.optimizer = OPTIMIZERS[optimizer](groups if in_groups else parameters)
        self.sparse = regrow.attach(
            self.model, self.optimizer, method, seed=seed, **storage_options(storage), **options
        )
        self.num_batches = 0

    def backward(self) -> None:
        images, labels = self.batches[self.num_batches % len(self.batches)]
        self.num_batches += 1
        cross_entropy(self.model(images), labels).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.backward()
            self.step()


# Ways to go through a training; each begins with a function that makes a fresh one


def straight(make: Callable[..., Training], num_steps: int = NUM_STEPS) -> Training:
    training = make()
    training.train(num_steps)
    return training


def accumulating(make: Callable[..., Training]) -> Training:
    training = make()
    for _ in range(NUM_STEPS):
        training.backward()
        training.backward()
        training.step()
    return training


def clipping(make: Callable[..., Training]) -> Training:
    training = make()
    for _ in range(NUM_STEPS):
        training.backward()
        training.sparse.mask_gradients()
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        training.step()
    return training


def scaled(make: Callable[..., Training]) -> Training:
    """With gradients of a scaled loss, of which one is infinite and skipped."""
    training, scaler = make(), torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(NUM_STEPS):
        images, labels = training.batches[step % len(training.batches)]
        loss = cross_entropy(training.model(images), labels)
        scaler.scale(loss * float("inf") if step == 6 else loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
    return training


def resumed(make: Callable[..., Training]) -> Training:
    """Saved halfway and loaded into fresh objects with another seed."""
    first, file = straight(make, 10), io.BytesIO()
    torch.save([own.state_dict() for own in (first.model, first.optimizer, first.sparse)], file)
    file.seek(0)
    second = make(seed=4)
    second.num_batches = first.num_batches
    for own, state in zip(
        (second.model, second.optimizer, second.sparse), torch.load(file, weights_only=True), strict=True
    ):
        own.load_state_dict(state)
    second.train(NUM_STEPS - 10)
    return second


def copied(make: Callable[..., Training]) -> Training:
    """A copy that goes its own way while the original goes on."""
    first = straight(make, 10)
    twin = copy.copy(first)
    twin.model, twin.optimizer, twin.sparse = copy.deepcopy((first.model, first.optimizer, first.sparse))
    first.train(3)
    twin.train(NUM_STEPS - 10)
    return twin


def detached(make: Callable[..., Training]) -> Training:
    """An ordinary network in the end, trained as one."""
    training = straight(make)
    training.sparse.detach()
    training.train(3)
    return training


def attached_again(make: Callable[..., Training]) -> Training:
    """Trained, detached, and gone on with from its own masks."""
    first = straight(make)
    masks = first.sparse.masks()
    first.sparse.detach()
    return straight(lambda: make(prepare=lambda model: first.model, start=masks))


def captured(make: Callable[..., Training]) -> Training:
    """Steps replayed as a CUDA graph, on one batch."""
    training = make()
    training.batches = training.batches[:1]

    def step() -> None:
        training.optimizer.zero_grad(set_to_none=False)
        training.backward()
        training.optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(NUM_STEPS):
        graph.replay()
        training.sparse.advance()
    torch.cuda.synchronize()
    return training


# What is left in the end


def digest(pieces: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(len(piece).to_bytes(8, "little") + piece)
    return found.hexdigest()[:16]


def bytes_of(tensor: Tensor) -> bytes:
    """All of a tensor: dtype, shape, and the bits in the order of its own indices."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()


def named(tensors: dict[str, Tensor]) -> Iterator[bytes]:
    for name, tensor in tensors.items():
        yield name.encode()
        yield bytes_of(tensor)


def left_by(training: Training) -> Iterator[bytes]:
    """The parameters and buffers, rather than the model's state, in which storages may leave marks of their own."""
    model, optimizer, sparse = training.model, training.optimizer, training.sparse
    yield from named(dict(model.named_parameters()))
    yield from named({name: own for name, own in model.named_buffers() if not name.endswith("_topology")})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name in sorted(state):
                yield name.encode()
                yield bytes_of(torch.as_tensor(state[name]))
    yield from named(sparse.masks())
    for record in sparse.history:
        told = (record.step, dict(record.pruned), dict(record.grown), record.threshold)
        yield repr(told).encode()


def in_file(training: Training, read: Callable[[Path], Iterator[bytes]], **options: Any) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        regrow.save(path, training.model, training.sparse, **options)
        yield from read(path)


def stored(path: Path) -> Iterator[bytes]:
    """All that is in a file; its header sorted, since safetensors writes that in any order."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    yield json.dumps(json.loads(content[8:end]), sort_keys=True).encode()
    yield content[end:]


def loaded(path: Path) -> Iterator[bytes]:
    """What a plain model gets from a file."""
    model = mlp()
    masks = regrow.load(path, model)
    yield from named(model.state_dict())
    yield from named(masks)


# The cases

Case = Callable[[], str]


def case(method: str, way: Callable[[Callable[..., Training]], Training] = straight, **choices: Any) -> Case:
    """A training by name of its method; choices that are the method's own fields come as `fields`."""
    fields = choices.pop("fields", {})

    def make(**others: Any) -> Training:
        return Training(METHODS[method](**fields), **{**choices, **others})

    return lambda: digest(left_by(way(make)))


def file_case(read: Callable[[Path], Iterator[bytes]], method: str, storage: str, **options: Any) -> Case:
    def run() -> str:
        return digest(in_file(straight(lambda: Training(METHODS[method](), storage=storage)), read, **options))

    return run


def to_channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


@torch.no_grad()
def full_of_ties(model: nn.Module) -> nn.Module:
    """Weights of few different magnitudes, so that the order of equals decides."""
    for parameter in model.parameters():
        parameter.copy_((16 * parameter).round() / 16)
    return model


def storages_of(method: str) -> tuple[str, ...]:
    return STORAGES if method in PACKABLE else (DENSE,)


def cases() -> dict[str, Case]:
    """All cases by name, for a CPU."""
    found: dict[str, Case] = {}
    both = [(method, storage) for method in METHODS for storage in storages_of(method)]
    rewiring = [(m, storage) for m, storage in both if m not in ("Static", "Dense", "Hashed")]

    for method, storage in both:
        for network in ("mlp", "conv"):
            found[f"{method}, {network}, {storage}"] = case(method, network=network, storage=storage)
        resume = case(method, resumed, network="conv", optimizer="AdamW", storage=storage)
        found[f"{method}, resumed, {storage}"] = resume
        found[f"{method}, copied, {storage}"] = case(method, copied, optimizer="RMSprop", storage=storage)
        found[f"{method}, detached, {storage}"] = case(method, detached, optimizer="AdamW", storage=storage)
        found[f"{method}, groups, {storage}"] = case(method, in_groups=True, storage=storage)
        found[f"{method}, l1, {storage}"] = case(method, fields={"l1": 0.01}, storage=storage)
        double = case(method, network="conv", prepare=nn.Module.double, storage=storage)
        found[f"{method}, float64, {storage}"] = double

    for method, storage in rewiring:
        for way in (accumulating, clipping, scaled):
            found[f"{method}, {way.__name__}, {storage}"] = case(method, way, storage=storage)
        half = case(method, prepare=nn.Module.bfloat16, storage=storage)
        found[f"{method}, bfloat16, {storage}"] = half
        if not method.startswith("DeepR"):  # whose weights would never cross zero
            ties = case(method, optimizer="still", prepare=full_of_ties, start="magnitude", storage=storage)
            found[f"{method}, ties, {storage}"] = ties
        found[f"{method}, attention, {storage}"] = case(method, network="attention", storage=storage)
        last = case(method, network="conv", prepare=to_channels_last, storage=storage)
        found[f"{method}, channels_last, {storage}"] = last

    for method, storage in rewiring:
        if storage != DENSE_KERNELS:  # chunks are the row's, whatever computes
            few = case(method, lambda make: straight(make, 9), network="wide", storage=storage)
            found[f"{method}, several chunks, {storage}"] = few
    found["SET, ties in several chunks"] = case(
        "SET", lambda make: straight(make, 5), network="wide", optimizer="still", prepare=full_of_ties
    )

    for method in COARSE:
        for granularity in ("kernel", "channel"):
            for way in (straight, resumed):
                name = f"{method}, {granularity}, {way.__name__}"
                coarse = {"granularity": granularity, "sparsity": 0.6}
                found[name] = case(method, way, network="conv", optimizer="AdamW", fields=coarse)

    for distribution in ("uniform", "er", "erk", {"0.*": 0.5, "5.weight": 0.6}):
        for method, storage in (("DSR", DENSE), ("RigL", SPARSE_KERNELS), ("Gradual", DENSE), ("Hashed", DENSE)):
            name = distribution if isinstance(distribution, str) else "mapping"
            fields = {"distribution": distribution, "sparsity": 0.7}
            found[f"{method}, {name}"] = case(method, network="conv", storage=storage, fields=fields)

    for method, storage in (("DSR", DENSE), ("SET", SPARSE_KERNELS), ("RigL", DENSE), ("DeepR", SPARSE_KERNELS)):
        found[f"{method}, start by magnitude, {storage}"] = case(method, start="magnitude", storage=storage)
        found[f"{method}, start by masks, {storage}"] = case(method, attached_again, storage=storage)
        found[f"{method}, some layers, {storage}"] = case(method, layers=["0.*", "6.weight"], storage=storage)
    for name, fields in {
        "DSR, a count": {"prune": 30, "tolerance": 0.3},
        "SET, a count": {"fraction": 25},
        "DSR, changing periods": {"period": {0: 2, 8: 5}},
        "DeepR, changing temperature": {"temperature": {0: 1e-2, 9: 1e-4}, "period": 2},
        "RigL, few steps": {"until": 9, "fraction": 0.6},
    }.items():
        found[name] = case(name.split(",")[0], fields=fields)

    for method in ("DSR", "RigL", "DeepR", "Static"):
        for storage in PACKED:
            found[f"{method}, blocks, {storage}"] = case(method, network="blocks", storage=storage)

    for method, storage in (("DSR", DENSE), ("DSR", SPARSE_KERNELS), ("RigL", DENSE), ("Gradual", DENSE)):
        found[f"loaded {method}, {storage}"] = file_case(loaded, method, storage)
        found[f"file {method}, {storage}"] = file_case(stored, method, storage)
        found[f"file {method}, {storage}, bfloat16"] = file_case(stored, method, storage, values="bfloat16")
    found["file Hashed"] = file_case(stored, "Hashed", DENSE)
    return found


def gpu_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for method in ("DSR", "SET", "RigL", "SNFS", "DeepR", "DeepR over the network"):
        for network in ("mlp", "conv", "wide"):
            found[f"{method}, {network}, GPU"] = case(method, network=network, device="cuda")
        found[f"{method}, resumed, GPU"] = case(method, resumed, optimizer="AdamW", device="cuda")
    for method in ("DSR", "RigL", "DeepR"):
        found[f"{method}, packed, GPU"] = case(method, network="conv", storage=DENSE_KERNELS, device="cuda")
    for method in ("DSR", "DeepR"):
        found[f"{method}, captured, GPU"] = case(method, captured, device="cuda")
    return found


def outcome(run: Case) -> str:
    """A case's digest; one that breaks tells how, and does not stop the others."""
    try:
        return run()
    except Exception as error:
        return f"{FAILED}{type(error).__name__}: {error}"


def run_all(pattern: str) -> dict[str, str]:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    chosen = cases() | (gpu_cases() if torch.cuda.is_available() else {})
    return {name: outcome(run) for name, run in chosen.items() if fnmatch(name, pattern)}


def run_at(revision: str, pattern: str) -> dict[str, str]:
    """The same cases under the library as it was at a revision."""
    with checkout_of(revision, "golden.py") as checkout:
        out = checkout / "digests.json"
        command = [sys.executable, "-m", "benchmarks.golden", "--only", pattern, "--out", str(out)]
        subprocess.run(command, cwd=checkout, env=paths_of(checkout), stdout=subprocess.DEVNULL, check=False)
        told = json.loads(out.read_text())
    if not Path(told["regrow"]).is_relative_to(checkout):
        raise SystemExit(f"{revision} was run with {told['regrow']}, not with its own library")
    return told["digests"]


def compare(ours: dict[str, str], theirs: dict[str, str]) -> int:
    """Tell what differs; the exit status. A case that broke on both sides shows nothing, and counts."""
    different = [name for name in ours if ours[name] != theirs.get(name) or ours[name].startswith(FAILED)]
    for name in different:
        print(f"{name}\n    now:    {ours[name]}\n    before: {theirs.get(name)}")
    print(f"{len(ours)} cases, {len(different) or 'all the same'}{' differ' * bool(different)}")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="a revision to compare with")
    parser.add_argument("--only", metavar="PATTERN", default="*", help='cases of such a name, e.g. "DSR, *"')
    parser.add_argument("--out", metavar="FILE", type=Path, help="where to write all digests, as JSON")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else matrix products on a GPU may differ
    begin = time.perf_counter()
    ours = run_all(arguments.only)
    print(f"{len(ours)} cases with {regrow.__file__} in {time.perf_counter() - begin:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps({"regrow": regrow.__file__, "digests": ours}, indent=1))
    if arguments.against:
        return compare(ours, run_at(arguments.against, arguments.only))
    for name, found in ours.items():
        print(f"{found}  {name}")
    return 1 if any(found.startswith(FAILED) for found in ours.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
