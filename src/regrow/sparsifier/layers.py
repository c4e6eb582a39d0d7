"""Which tensors of a model are sparse."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.optim import Optimizer

from regrow.core.names import match, named_parameters, suggest, unwrap
from regrow.core.units import Block, Granularity, Layer, cut, is_cuttable
from regrow.distributed.dtensor import local
from regrow.sparsifier.shared_memory import check_memory

Selection = None | str | Iterable[str] | Callable[[str, nn.Parameter], bool]
_ATTENTION_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def choose_layers(
    model: nn.Module,
    optimizer: Optimizer,
    selection: Selection,
    granularity: Granularity,
    exclude: str | Iterable[str] = (),
    may_be_meta: bool = False,
) -> tuple[list[tuple[Layer, nn.Parameter]], tuple[str, ...]]:
    """The sparse layers of a model with their parameters, in the order of `model.named_parameters()`.

    Only parameters that train count: those that require a gradient and that the optimizer holds. With them the names of
    those that stay dense, because nobody named them and blocks do not divide them.
    """
    everything = dict(named_parameters(model))
    held = held_by(optimizer)
    if not any(id(parameter) in held for parameter in everything.values()):
        raise ValueError(
            "the optimizer holds none of the model's parameters; build it from this model: SGD(model.parameters(), ...)"
        )
    trained = trained_parameters(model, optimizer)
    for name, parameter in trained.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{name} has no shape yet; run one batch through the model before attaching")
    output_dims = _output_dims(model)
    left_out = _excluded(exclude, everything)
    names = [name for name in _select(model, everything, trained, selection) if name not in left_out]
    undivided: tuple[str, ...] = ()
    if selection is None and isinstance(granularity, Block):
        undivided = tuple(name for name in names if not _divides(granularity, trained[name], output_dims))
        names = [name for name in names if name not in undivided]
    if not names:
        num_at_rest = len(usual_weights(model) & {id(own) for own in everything.values()})
        why = f" ({num_at_rest} are frozen, or not held by the optimizer)" if num_at_rest and not selection else ""
        raise ValueError(f"the model has no layer to make sparse that trains{why}; name some with layers=[...]")
    for name in names:
        _check_exists(name, trained[name], may_be_meta)
    check_memory({name: local(own) for name, own in everything.items()}, names)
    _check_gradients_are_dense(model, {id(trained[name]): name for name in names})
    chosen = []
    for name in names:
        parameter = trained[name]
        output_dim = output_dims.get(id(parameter), 0)
        if output_dim is None and (granularity == "channel" or isinstance(granularity, Block)):
            raise ValueError(
                f"{name} is a grouped transposed convolution, which has no single channel dimension; leave it out"
            )
        chosen.append((cut(name, parameter, granularity, output_dim or 0), parameter))
    return chosen, undivided


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """What requires a gradient, and the optimizer holds, by name."""
    held = held_by(optimizer)
    return {
        name: parameter
        for name, parameter in named_parameters(model)
        if id(parameter) in held and parameter.requires_grad and parameter.is_floating_point()
    }


def held_by(optimizer: Optimizer) -> set[int]:
    """The identities of an optimizer's parameters."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _divides(block: Block, parameter: nn.Parameter, output_dims: Mapping[int, int | None]) -> bool:
    output_dim = output_dims.get(id(parameter), 0)
    return output_dim is not None and is_cuttable(parameter, block, output_dim)


def _select(
    model: nn.Module, everything: dict[str, nn.Parameter], trained: dict[str, nn.Parameter], selection: Selection
) -> list[str]:
    if selection is None or callable(selection):
        wanted = usual_weights(model)
        usual = [name for name, parameter in trained.items() if id(parameter) in wanted]
        return [name for name in usual if selection is None or selection(name, trained[name])]
    patterns = _patterns(selection, "layers must be names, glob patterns or a function")
    for pattern in patterns:
        if all(name not in trained for name in match(pattern, list(everything))):
            raise ValueError(
                f"{pattern!r} matches only parameters that do not train (frozen, or not held by the optimizer); "
                f"{suggest(pattern, trained)}"
            )
    chosen = {name for pattern in patterns for name in match(pattern, list(everything))}
    return [name for name in trained if name in chosen]


def _excluded(exclude: str | Iterable[str], everything: dict[str, nn.Parameter]) -> set[str]:
    """All parameters that patterns, of their names or of modules, leave dense."""
    patterns = _patterns(exclude, "exclude must be names or glob patterns, of layers or modules")
    return {name for pattern in patterns for name in match(pattern, list(everything), modules_too=True)}


def _patterns(given: object, must_be: str) -> list[str]:
    if isinstance(given, str):
        return [given]
    patterns: list[str] = []
    for pattern in given if isinstance(given, Iterable) else [given]:
        if not isinstance(pattern, str):
            raise TypeError(f"{must_be}, got {pattern!r}")
        patterns.append(pattern)
    return patterns


def usual_weights(model: nn.Module) -> set[int]:
    """Weights of linear and convolution layers and of attention projections, unless an embedding shares them, by id."""
    wanted: set[int] = set()
    embedded: set[int] = set()
    for module in unwrap(model).modules():
        own = module._parameters
        if isinstance(module, (nn.Linear, _ConvNd)) or _is_conv1d(module):
            wanted.add(id(own.get("weight")))
        elif isinstance(module, nn.MultiheadAttention):
            wanted.update(id(own.get(name)) for name in _ATTENTION_PROJECTIONS)
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            embedded.add(id(own.get("weight")))
    return wanted - embedded


def _output_dims(model: nn.Module) -> dict[int, int | None]:
    """Where transposed convolutions and `transformers`' Conv1D, unlike other layers, keep their output channels."""
    found: dict[int, int | None] = {}
    for module in unwrap(model).modules():
        if isinstance(module, _ConvTransposeNd):
            found[id(module.weight)] = 1 if module.groups == 1 else None
        elif _is_conv1d(module):
            found[id(module.weight)] = 1
    return found


def _is_conv1d(module: nn.Module) -> bool:
    """Whether a module is the linear layer of GPT-2 and others, told by its name, as `transformers` may be missing."""
    kinds = type(module).mro()
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in kinds)


def _check_gradients_are_dense(model: nn.Module, names: dict[int, str]) -> None:
    for module in unwrap(model).modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            name = names.get(id(module._parameters.get("weight")))
            if name is not None:
                raise ValueError(
                    f"{name} is of an embedding whose gradients are sparse tensors; build it with sparse=False, or "
                    "leave it out of layers"
                )


def _check_exists(name: str, parameter: nn.Parameter, may_be_meta: bool) -> None:
    if parameter.is_meta and not may_be_meta:
        raise ValueError(
            f"{name} is on the meta device and has no values; move it with model.to_empty(device=...) first, or use "
            "storage='packed'"
        )
    if parameter.layout != torch.strided or parameter.numel() == 0:
        raise ValueError(f"{name} is not an ordinary tensor with at least one weight; leave it out of layers")
