"""The one line a user adds to a training loop."""

import gc
from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core.densities import starting_counts
from regrow.core.first_topology import largest_units, random_topology
from regrow.core.row import Chunk
from regrow.core.units import Layer
from regrow.methods.method import Method
from regrow.sparsifier.layers import Selection, choose_layers
from regrow.sparsifier.sparsifier import Sparsifier, sparsifiers_of
from regrow.sparsifier.state import check_masks
from regrow.storage.computed_weights import leave_out_unfit, shared_values
from regrow.storage.dense.storage import DenseStorage
from regrow.storage.hashed.storage import hash_weights
from regrow.storage.optimizer_state import check_leaves_zeros_alone
from regrow.storage.packed.build import (
    Init,
    Kernels,
    check_can_be_packed,
    check_packable,
    first_units,
    pack_weights,
)
from regrow.storage.packed.layers import packed_slots
from regrow.storage.packed.meta import become_real, check_can_become_real


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    *,
    layers: Selection = None,
    start: str | Mapping[str, Tensor] = "random",
    seed: int = 0,
    storage: str = "dense",
    init: Init | None = None,
    kernels: Kernels = "auto",
) -> Sparsifier:
    """Make a network sparse and keep it so while its optimizer trains it.

    - `layers`: None for the weights of all linear and convolution layers and attention projections; or names, glob
      patterns, or a function (name, parameter) -> bool.
    - `start`: "random", "magnitude" (keep the largest weights of a trained model) or masks {name: bool tensor}, which
      then define the budget. Values that positions share start at random only.
    - `seed`: the topology is a function of it and of the step; the generators of torch are not touched.
    - `storage`: "dense" leaves weights where they are, with zeros; "packed" stores active ones only.
    - `init`: for packed layers on the meta device, whose weights never existed: a function (name, shape, n, generator)
      -> n values. By default they are drawn as torch draws the weights of linear and convolution layers.
    - `kernels`: how packed layers compute on a CPU: "sparse" on their values alone, "dense" as dense ones for a moment,
      or "auto", whichever is measured to be faster for each; that becomes part of `state_dict()`.

    Replaces no object of yours, with two exceptions: packed storage and Hashed put vectors of values in the place of
    the dense weights, in the model and in the optimizer. Nothing is changed if anything is wrong with the arguments.
    """
    _check_arguments(model, optimizer, method, start, seed, storage, kernels)
    if torch.is_inference_mode_enabled():
        raise ValueError("nothing that is made under torch.inference_mode can be trained; attach outside of it")
    is_packed = storage == "packed"
    if is_packed:
        check_can_be_packed(method)
    elif init is not None:
        raise ValueError("init is for packed layers on the meta device; use storage='packed' with it")
    if packed_slots(model):
        raise ValueError("this model is packed already; call detach() on its sparsifier first, or build it anew")
    chosen = choose_layers(model, optimizer, layers, method.granularity, may_be_meta=is_packed)
    if (method.shares_values or is_packed) and layers is None:
        chosen = leave_out_unfit(model, chosen)
    units, parameters = [layer for layer, _ in chosen], [parameter for _, parameter in chosen]
    _check_not_attached(model, parameters)
    if method.shares_values:
        return _attach_hashed(model, optimizer, method, units, parameters, start, seed)
    check_leaves_zeros_alone(optimizer, list(parameters))
    if is_packed:
        return _attach_packed(model, optimizer, method, units, parameters, start, seed, init, kernels)

    place = DenseStorage(units, parameters)
    budget = method.budget(sum(layer.num_weights for layer in units))
    if isinstance(start, Mapping):
        check_masks(start, units)
        place.set_masks([start[layer.name] for layer in units])
        counts = goal = place.count()
        if method.keeps_budget:
            budget = sum(count * layer.unit_size for count, layer in zip(counts, units, strict=True))
        else:
            goal = _share(budget, units, method)
    else:
        goal = _share(budget, units, method)
        counts = full = [layer.num_units for layer in units]
        if method.keeps_budget and goal != full:
            counts = goal
            place.set_active([_first_topology(chunk, chunk.of(goal), start, place, seed) for chunk in place.chunks])

    if method.walks:
        place.fix_signs(seed)
    place.zero_inactive(optimizer)
    return Sparsifier(optimizer, method, place, seed=seed, counts=counts, goal=goal, budget=budget)


def _attach_hashed(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    layers: list[Layer],
    parameters: list[nn.Parameter],
    start: str | Mapping[str, Tensor],
    seed: int,
) -> Sparsifier:
    if start != "random":
        raise ValueError('the weights of a trained model are not shared ones; attach Hashed with start="random"')
    budget = method.budget(sum(layer.num_weights for layer in layers))
    counts = _share(budget, layers, method)
    place = hash_weights(model, optimizer, layers, parameters, counts, seed)
    return Sparsifier(optimizer, method, place, seed=seed, counts=counts, goal=counts, budget=budget)


def _attach_packed(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    layers: list[Layer],
    parameters: list[nn.Parameter],
    start: str | Mapping[str, Tensor],
    seed: int,
    init: Init | None,
    kernels: Kernels,
) -> Sparsifier:
    check_packable(model, optimizer, layers, parameters)
    _check_first_values(parameters, start, init)
    check_can_become_real(model, parameters)
    if isinstance(start, Mapping):
        check_masks(start, layers)
        counts = [int(start[layer.name].count_nonzero()) for layer in layers]
    else:
        counts = _share(method.budget(sum(layer.num_weights for layer in layers)), layers, method)
    units = first_units(layers, parameters, counts, start, seed)
    place = pack_weights(model, optimizer, layers, parameters, units, seed, init, kernels)
    become_real(model, optimizer, place.packs[0].values.device)
    if method.walks:
        place.fix_signs(seed)
    return Sparsifier(optimizer, method, place, seed=seed, counts=counts, goal=counts, budget=sum(counts))


def _check_first_values(parameters: list[nn.Parameter], start: object, init: Init | None) -> None:
    has_meta = any(parameter.is_meta for parameter in parameters)
    if has_meta and start == "magnitude":
        raise ValueError('weights on the meta device have no magnitudes; attach with start="random"')
    if init is not None and not has_meta:
        raise ValueError("init is for layers on the meta device, and this model has weights; set them before attaching")


def _share(budget: int, layers: list[Layer], method: Method) -> list[int]:
    """How many units each layer gets of the budget."""
    if budget == sum(layer.num_weights for layer in layers):
        return [layer.num_units for layer in layers]
    return starting_counts(layers, budget, method.distribution)


def _first_topology(chunk: Chunk, counts: Sequence[int], start: str, place: DenseStorage, seed: int) -> Tensor:
    if start == "magnitude":
        return largest_units(chunk, counts, chunk.of(place.weights))
    return random_topology(chunk, counts, seed)


def _check_arguments(
    model: object, optimizer: object, method: object, start: object, seed: object, storage: object, kernels: object
) -> None:
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
    if storage not in ("dense", "packed"):
        raise ValueError(f'storage must be "dense" or "packed", got {storage!r}')
    if kernels not in get_args(Kernels):
        raise ValueError(f"kernels must be one of {get_args(Kernels)}, got {kernels!r}")


def _check_not_attached(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    if sparsifiers_of(parameters):
        gc.collect()  # one whose optimizer is gone may only be waiting for collection
        if sparsifiers_of(parameters):
            raise ValueError("these parameters are already attached; call detach() on the other sparsifier first")
    hashed = {id(values) for values in shared_values(model)}
    if any(id(parameter) in hashed for parameter in parameters):
        raise ValueError("this model is hashed and its sparsifier is gone; build it anew, or detach before copying it")
