"""The conformance suite: what must be true of every method, one's own included.

regrow.testing.check_method(MyMethod(sparsity=0.8))
"""

import copy
import dataclasses
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.methods.method import Method
from regrow.size import largest_unit
from regrow.sparsifier.attach import attach
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.storage.base import Rewirable, StorageKind

_NUM_STEPS = 16
_LAST_REWIRING = 12
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with Nesterov momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def check_method(
    method: Method,
    *,
    device: str | torch.device = "cpu",
    storage: str | StorageKind = "dense",
    moments: str = "clean",
) -> None:
    """Train a small network with the method, sped up to rewire often, and assert every promise.

    `moments` that are not clean are asked of AdamW alone, as SGD has none.
    """
    fast = _hasten(method)
    names = list(OPTIMIZERS) if moments == "clean" else ["AdamW"]
    make = partial(Trial, fast, device=device, storage=storage, moments=moments)
    for name in names:
        check_training(make(OPTIMIZERS[name]), _NUM_STEPS)
    _check_resume(partial(make, OPTIMIZERS["AdamW" if len(names) == 1 else "SGD with Nesterov momentum"]))
    _check_detach(make(OPTIMIZERS["AdamW"]))


class Trained(Protocol):
    """What can be checked: a model, its optimizer and sparsifier, and how to take a step."""

    model: nn.Module
    optimizer: Optimizer
    sparse: Sparsifier

    def step(self) -> object: ...


class Trial:
    """A small network in training: convolutions, norms and a linear layer on random images."""

    def __init__(
        self,
        method: Method,
        optimizer: Callable[[Any], Optimizer],
        device: str | torch.device = "cpu",
        seed: int = 3,
        storage: str | StorageKind = "dense",
        moments: str = "clean",
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model: nn.Module = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
                nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                nn.Flatten(), nn.Linear(8 * 4 * 4, 10),
            ).to(device)  # fmt: skip
            self.images = torch.randn(24, 3, 6, 6).to(device)
            self.labels = torch.randint(10, (24,)).to(device)
        self.optimizer = optimizer(self.model.parameters())
        self.sparse = attach(self.model, self.optimizer, method, seed=seed, storage=storage, moments=moments)

    def step(self) -> None:
        loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self) -> bytes:
        buffer = io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), self.sparse.state_dict()], buffer)
        return buffer.getvalue()

    def load(self, saved: bytes) -> None:
        model, optimizer, sparse = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.sparse.load_state_dict(sparse)


def check_invariants(model: nn.Module, optimizer: Optimizer, sparse: Sparsifier) -> None:
    """What is true after every step: the budget, and zeros wherever a weight is inactive.

    With a dense step that is so of weights alone.
    """
    masks = sparse.masks()
    if sparse.method.storage == "hashed":
        held = [parameter.numel() for parameter in sparse.storage.parameters]
    else:
        held = [int(mask.sum()) for mask in masks.values()]
    assert held == [layer.active for layer in sparse.layers], "active must count the masks or the shared values"
    assert sparse.active == sum(held)
    assert sparse.budget - largest_unit(sparse) < sparse.active <= sparse.budget, (
        f"{sparse.active} weights are active under a budget of {sparse.budget}"
    )
    dense, is_dense_step = _dense_tensors(sparse, optimizer), "dense_step" in sparse.method.needs
    for name, mask in masks.items():
        assert bool(mask.any()), f"{name} went empty"
        for tensor in dense[name][: 1 if is_dense_step else None]:
            assert bool((tensor[~mask] == 0).all()), f"{name} is not 0 somewhere inactive"


def _hasten(method: Method) -> Method:
    changes: dict[str, Any] = {"period": 1 if method.rewires_every_step else 2, "until": _LAST_REWIRING}
    if isinstance(method.distribution, Mapping):
        changes["distribution"] = "uniform"
    if any(field.name == "begin" for field in dataclasses.fields(method)):
        changes["begin"] = 0
    return dataclasses.replace(method, **changes)


def check_training(trial: Trained, num_steps: int) -> None:
    """Take some steps, of which at least one rewires, and assert after each what is always true."""
    check_invariants(trial.model, trial.optimizer, trial.sparse)
    name, until = type(trial.optimizer).__name__, trial.sparse.method.until
    for step in range(1, num_steps + 1):
        before, records = trial.sparse.masks(), _totals(trial.sparse)
        trial.step()
        check_invariants(trial.model, trial.optimizer, trial.sparse)
        assert trial.sparse.num_steps == step, f"{step} steps with {name} were counted as {trial.sparse.num_steps}"
        _check_rewiring(trial, before, records)
    if trial.sparse.method.rewires and trial.sparse.sparsity > 0:
        assert trial.sparse.history, f"{num_steps} steps with {name} left no record of a rewiring"
        assert until is None or trial.sparse.history[-1].step <= until, "a rewiring came after `until`"


def _check_rewiring(trial: Trained, before: dict[str, Tensor], records: dict[str, tuple[int, int]]) -> None:
    dense = _dense_tensors(trial.sparse, trial.optimizer)
    after, now = trial.sparse.masks(), _totals(trial.sparse)
    sizes = {layer.name: layer.unit_size for layer in trial.sparse.storage.layers}
    for name, mask in after.items():
        came, went = mask & ~before[name], before[name] & ~mask
        for tensor in dense[name][: _num_clean(trial.sparse)]:
            assert bool((tensor[came] == 0).all()), f"what grew in {name} did not start at 0 with clean state"
        told = tuple((new - old) * sizes[name] for new, old in zip(now[name], records[name], strict=True))
        seen = (int(went.sum()), int(came.sum()))
        assert told == seen, (
            f"{name}: (pruned, grown) was {seen}, the history says {told}; did something return at once?"
        )


def _num_clean(sparse: Sparsifier) -> int | None:
    """Of the weights and their optimizer state, how many are 0 where something grew; None for all."""
    if "dense_step" in sparse.method.needs:
        return 0
    return 1 if sparse.moments == "informed" else None


def _dense_tensors(sparse: Sparsifier, optimizer: Optimizer) -> dict[str, list[Tensor]]:
    return sparse.storage.dense_tensors(optimizer) if isinstance(sparse.storage, Rewirable) else {}


def _totals(sparse: Sparsifier) -> dict[str, tuple[int, int]]:
    return {
        layer.name: (
            sum(record.pruned[layer.name] for record in sparse.history),
            sum(record.grown[layer.name] for record in sparse.history),
        )
        for layer in sparse.layers
    }


def _check_resume(make: Callable[..., Trial]) -> None:
    whole, first = make(), make()
    for _ in range(_NUM_STEPS):
        whole.step()
    for _ in range(7):
        first.step()
    second = make(seed=4)
    second.load(first.save())
    twin = copy.copy(first)
    twin.model, twin.optimizer, twin.sparse = copy.deepcopy((first.model, first.optimizer, first.sparse))
    for rest, how in ((second, "after saving and loading"), (twin, "after deepcopy")):
        for _ in range(_NUM_STEPS - 7):
            rest.step()
        assert _same(whole, rest), f"training went another way {how}"


def _same(one: Trial, other: Trial) -> bool:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    masks = other.sparse.masks()
    return (
        all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
        and all(torch.equal(mask, masks[name]) for name, mask in one.sparse.masks().items())
        and one.sparse.history == other.sparse.history
    )


def _check_detach(trial: Trial) -> None:
    trial.step()
    masks = trial.sparse.masks()
    trial.sparse.detach()
    parameters = dict(trial.model.named_parameters())
    before = {layer.name: parameters[layer.name].detach().clone() for layer in trial.sparse.layers}
    for layer in trial.sparse.layers:
        assert before[layer.name].shape == layer.shape, "detach must leave dense weights"
    for name, mask in masks.items():
        assert bool((before[name][~mask] == 0).all()), "detach must leave zeros"
    trial.step()
    moved = {name: parameters[name].detach() != weight for name, weight in before.items()}
    idle = [moved[name] if trial.sparse.method.storage == "hashed" else moved[name] & ~masks[name] for name in moved]
    assert any(bool(places.any()) for places in idle) or trial.sparse.sparsity == 0, (
        "after detach the optimizer must train all weights"
    )
