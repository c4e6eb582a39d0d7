"""The one line a user adds to a training loop."""

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.densities import check_together, starting_counts
from regrow.core.random import NUM_SEEDS
from regrow.core.row import Tally
from regrow.core.units import Layer
from regrow.distributed.dtensor import is_sharded
from regrow.distributed.wrappers import check_not_sharded, reshard
from regrow.methods.method import NEEDS, Method
from regrow.sparsifier.hints import hint, of_endless_method, of_lost_signals, of_other_settings
from regrow.sparsifier.layers import Selection, choose_layers
from regrow.sparsifier.left_dense import left_dense, of_much
from regrow.sparsifier.live import steps_of
from regrow.sparsifier.moments import grown_moments
from regrow.sparsifier.ranks import compare_shards
from regrow.sparsifier.resume import start_of
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.sparsifier.state import checked
from regrow.sparsifier.steps import Steps
from regrow.sparsifier.wrapped import owner_of_state
from regrow.storage import STORAGES
from regrow.storage.base import Chosen, Start, StorageKind
from regrow.storage.check_masks import check_masks
from regrow.storage.computed_weights import shared_values
from regrow.storage.packed.layers import packed_slots


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    *,
    layers: Selection = None,
    exclude: str | Iterable[str] = (),
    start: str | Mapping[str, Tensor] = "random",
    seed: int = 0,
    storage: str | StorageKind = "dense",
    rescale: str | None = None,
    moments: str = "clean",
    resume: Mapping[str, Any] | None = None,
) -> Sparsifier:
    """Make a network sparse and keep it so while its optimizer trains it.

    - `optimizer`: of a wrapper that passes on its steps, as trainers have them, the one inside is taken.
    - `layers`: None for the weights of all linear and convolution layers and attention projections, or a function
      (name, parameter) -> bool that is asked about each of these; or names and glob patterns, of any parameters.
    - `exclude`: names and glob patterns, of parameters or of modules, that stay dense: `exclude=["head"]`.
    - `start`: "random", "magnitude" (keep the largest weights of a trained model) or masks {name: bool tensor}, which
      then define the budget. Values that positions share start at random only.
    - `seed`: the topology is a function of it and of the step; the generators of torch are not touched.
    - `storage`: "dense" leaves weights where they are, with zeros; "packed", or `regrow.Packed(...)` with options,
      stores active ones only.
    - `rescale`: "density" multiplies the first weights of each layer by 1/sqrt(its density), once, so that signals keep
      their size where most weights are missing; for start="random".
    - `moments`: how the state of an adaptive optimizer, as Adam is, begins for weights that grow: "clean" (at 0);
      "aged", where it is corrected by each weight's own age, and warms up; "informed", where its second moment begins
      at the mean of the layer's.
    - `resume`: the `state_dict()` of a sparsifier. Its masks, step, history and seed are taken over at once, so that
      weights and optimizer state that were restored before attaching, as some trainers do, stay as they are.

    Replaces no object of yours, with two exceptions: packed storage and Hashed put vectors of values in the place of
    the dense weights, in the model and in the optimizer. Nothing is changed if anything is wrong with the arguments.
    """
    check_not_sharded(model, optimizer)
    optimizer = owner_of_state(optimizer)
    _check_arguments(model, optimizer, method, start, seed)
    reshard(model)
    _check_rescale(rescale, start)
    if resume is not None and start != "random":
        raise ValueError("resume brings the masks that were saved; leave out start, or resume")
    kind = _storage_for(method, storage)
    kind.check(method, start)
    if packed_slots(model):
        raise ValueError("this model is packed already; call detach() on its sparsifier first, or build it anew")
    chosen, undivided = choose_layers(
        model, optimizer, layers, method.granularity, exclude=exclude, may_be_meta=kind.may_be_meta
    )
    if layers is None:
        chosen = list(kind.fit(model, chosen))
    _check_can_be_sharded(chosen, kind)
    sparse_layers, parameters = [layer for layer, _ in chosen], [parameter for _, parameter in chosen]
    _check_not_attached(model, parameters)
    if resume is not None:
        start, seed = start_of(resume, method, sparse_layers, kind.name)
    compare_shards(chosen, method, seed, start if isinstance(start, str) else "masks")
    tally, grown = _first_tally(method, sparse_layers, start), grown_moments(moments, method, optimizer, parameters)
    method.check_layers(sparse_layers, tally)
    if "dense_step" in method.needs and any(map(is_sharded, parameters)):
        raise ValueError(
            f"{type(method).__name__} compares all places of a layer, which no rank has here; attach to a model that "
            "is not sharded"
        )
    left = left_dense(model, optimizer, parameters, undivided)
    is_drawn = start == "random" and rescale is None and kind.name != "hashed"
    hint(
        (
            of_much(model, optimizer, left) if layers is None and not exclude else None,
            of_endless_method(method),
            of_lost_signals(model, tally) if is_drawn else None,
            of_other_settings(resume, method) if resume is not None else None,
        )
    )
    method.effects(), method.first_memory()  # before anything is changed: other people's methods may raise here
    first = replace(_first(start, tally, rescale, seed), is_dense_step="dense_step" in method.needs)
    place, begin = kind.build(model, optimizer, chosen, first)
    steps = Steps(method, place, optimizer, tally, seed, grown)
    try:
        if resume is not None:
            steps.restore(checked(resume, method, place, tally, grown))
        begin()
        steps.settle(model)
    except BaseException:
        steps.end()
        raise
    return Sparsifier(steps, left)


def _storage_for(method: Method, storage: str | StorageKind) -> StorageKind:
    """The storage that was asked for, or that the method brings; refused if it does not offer what the method needs."""
    name = type(method).__name__
    open_to_all = [other for other in STORAGES if other != "hashed"]
    if method.storage is not None:
        if storage != "dense":
            raise ValueError(f"{name} brings its own storage, {method.storage}; leave out storage={storage!r}")
        kind = STORAGES[method.storage]
    elif not isinstance(storage, str):
        if isinstance(storage, type) or not isinstance(storage, StorageKind):
            raise TypeError(f"storage must be one of {open_to_all} or such as regrow.Packed(), got {storage!r}")
        kind = storage
    elif storage in open_to_all:
        kind = STORAGES[storage]
    else:
        raise ValueError(f"storage must be one of {open_to_all} or such as regrow.Packed(), got {storage!r}")
    for need in sorted(method.needs - kind.offers):
        offered_by = [other for other in open_to_all if method.needs <= STORAGES[other].offers]
        use = f"use storage={offered_by[0]!r}" if offered_by else "no storage has that yet"
        raise ValueError(f"{name} needs {NEEDS[need]} ({need!r}), which {kind.name} storage does not offer; {use}")
    return kind


def _check_can_be_sharded(chosen: Chosen, kind: StorageKind) -> None:
    for layer, parameter in chosen:
        if is_sharded(parameter) and not kind.may_be_sharded:
            raise ValueError(
                f"{layer.name} is a DTensor, spread over ranks by torch, which {kind.name} storage cannot hold; use a "
                "method in storage='dense', or a model that every rank holds whole"
            )


def _first_tally(method: Method, layers: Sequence[Layer], start: str | Mapping[str, Tensor]) -> Tally:
    """The network in numbers before the first step."""
    sizes, units = tuple(layer.unit_size for layer in layers), tuple(layer.num_units for layer in layers)
    nothing = (0,) * len(layers)
    everything = sum(layer.num_weights for layer in layers)
    target = method.budget(everything)
    check_together(layers, target, method.distribution)
    if isinstance(start, Mapping):
        active = tuple(check_masks(start, layers))
        held = sum(count * size for count, size in zip(active, sizes, strict=True))
        if "changing_budget" not in method.needs:
            return Tally(sizes, units, active, active, held, held, nothing)
        return Tally(sizes, units, active, _shared(target, layers, method), target, held, nothing)
    full = Tally(sizes, units, units, _shared(target, layers, method), target, everything, nothing)
    budget = method.budget_at(0, full)
    return replace(full, active=full.goal if budget == target else _shared(budget, layers, method), budget=budget)


def _first(start: str | Mapping[str, Tensor], tally: Tally, rescale: str | None, seed: int) -> Start:
    densities = [count / units for count, units in zip(tally.active, tally.num_units, strict=True)]
    factors = [1.0 if rescale is None or start != "random" else density**-0.5 for density in densities]
    return Start(start, tally.active, factors, seed)


def _shared(budget: int, layers: Sequence[Layer], method: Method) -> tuple[int, ...]:
    """How many units each layer gets of a budget."""
    if budget == sum(layer.num_weights for layer in layers):
        return tuple(layer.num_units for layer in layers)
    return tuple(starting_counts(layers, budget, method.distribution))


def _check_arguments(model: object, optimizer: object, method: object, start: object, seed: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(method, type) or not isinstance(method, Method):
        raise TypeError(f"method must be one of regrow's, e.g. regrow.DSR(sparsity=0.9), got {method!r}")
    if not isinstance(start, Mapping) and start not in ("random", "magnitude"):
        raise ValueError(f'start must be "random", "magnitude" or masks {{name: bool tensor}}, got {start!r}')
    if not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}; any other would be the same as one of these")
    if torch.is_inference_mode_enabled():
        raise ValueError("nothing that is made under torch.inference_mode can be trained; attach outside of it")


def _check_rescale(rescale: object, start: object) -> None:
    if rescale not in (None, "density"):
        raise ValueError(f'rescale must be None or "density", got {rescale!r}')
    if rescale is not None and start != "random":
        raise ValueError('rescale is for weights as they were drawn; leave it out, or start="random"')


def _check_not_attached(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    if steps_of(parameters):
        gc.collect()  # one whose optimizer is gone may only be waiting for collection
        if steps_of(parameters):
            raise ValueError(
                "these parameters are already attached; call old.detach() on that sparsifier first, and attach with "
                "start=old.masks() to keep its topology"
            )
    hashed = {id(values) for values in shared_values(model)}
    if any(id(parameter) in hashed for parameter in parameters):
        raise ValueError("this model is hashed and its sparsifier is gone; build it anew, or detach before copying it")
