"""Modules that compute a parameter where they read it: how a vector of values can stand in for a dense weight.

The module gets a class of its own, made from its old one, in which the parameter's name is a property. In
`module._parameters`, from which torch lists, saves, loads and moves parameters, the name stays that of the vector, or
is there for nothing where the vector is kept elsewhere.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.parallel import DataParallel, DistributedDataParallel

from regrow.core.names import unwrap
from regrow.core.units import Layer
from regrow.distributed.wrappers import replicas_of

Owners = list[tuple[nn.Module, str]]
Forward = Callable[..., Tensor]
_EXPANDERS = "_expanders"
_RECURRENT: dict[type[nn.Module], str] = {
    nn.RNNBase: "recurrent layers keep a second list of their weights, which would go on being used"
}
_UNFIT: dict[str, dict[type[nn.Module], str]] = {
    "packed": _RECURRENT,
    "hashed": {nn.MultiheadAttention: "the input projections of attention stay dense", **_RECURRENT},
}


class Expander(Protocol):
    """What makes a dense weight out of values."""

    def expand(self, values: Any) -> Tensor: ...


def shared_values(model: nn.Module) -> list[nn.Parameter]:
    """The value vectors of a model's hashed layers, tied ones once."""
    found = {
        id(parameter): parameter
        for module in unwrap(model).modules()
        for name in expanders_of(module)
        if (parameter := module._parameters[name]) is not None
    }
    return list(found.values())


def expanders_of(module: nn.Module) -> dict[str, Any]:
    """What a module's computed parameters are made by."""
    found: dict[str, Any] = module.__dict__.get(_EXPANDERS, {})
    return found


def owners_of(model: nn.Module, parameter: Tensor) -> Owners:
    """Every module that holds a parameter, and under which name."""
    return [
        (module, name)
        for module in unwrap(model).modules()
        for name, own in module._parameters.items()
        if own is parameter
    ]


def leave_out_unfit(
    model: nn.Module, chosen: Sequence[tuple[Layer, nn.Parameter]], how: str
) -> list[tuple[Layer, nn.Parameter]]:
    """The layers whose weights can be computed where they are read; `how` is the word for what becomes of them."""
    fit = [
        (layer, parameter)
        for layer, parameter in chosen
        if not any(isinstance(module, tuple(_UNFIT[how])) for module, _ in owners_of(model, parameter))
    ]
    if not fit:
        why = ", ".join(_UNFIT[how].values())
        raise ValueError(f"the model has no layer whose weights can be replaced: {why}; name others with layers=[...]")
    return fit


def check_replaceable(model: nn.Module, layers: Sequence[Layer], owners: Sequence[Owners], how: str) -> None:
    """Refuse weights that somebody would go on using after they were replaced; `how` is the word for it."""
    dense = [p for places in owners for module, name in places if (p := module._parameters[name]) is not None]
    for wrapper in (DistributedDataParallel, DataParallel):
        is_around = wrapper is DistributedDataParallel and replicas_of(dense)
        if is_around or any(isinstance(module, wrapper) for module in model.modules()):
            raise ValueError(
                f"{wrapper.__name__} would go on with the dense weights, which are {how} now; attach to the model "
                "before wrapping it in DistributedDataParallel"
            )
    for layer, places in zip(layers, owners, strict=True):
        for module, _ in places:
            for kind, why in _UNFIT[how].items():
                if isinstance(module, kind):
                    raise ValueError(f"{layer.name} cannot be {how}: {why}; leave it out of layers")


def check_not_traced(x: object) -> None:
    """Refuse to become part of a graph for other programs or processes, which have no values that know their places."""
    # Not is_exporting(), which in older torch says yes wherever something is compiled.
    is_exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    if torch._C._get_tracing_state() or isinstance(x, Proxy) or is_exporting:
        _refuse_graph("packed")


def _refuse_graph(how: str) -> NoReturn:
    raise ValueError(
        f"{how} layers cannot be traced, scripted or exported by torch; call detach() on the sparsifier first, or load "
        "the file of the model without storage='packed'. For ONNX there is regrow.export_onnx"
    )


@cache
def _expanding(base: Any, names: tuple[str, ...], prefix: str, forward: Forward | None) -> type[nn.Module]:
    """A module class whose parameters of these names are computed where they are read."""

    def expanded(name: str) -> property:
        return property(lambda module: module.__dict__[_EXPANDERS][name].expand(module._parameters[name]))

    def reduce(module: nn.Module, protocol: int) -> tuple[Any, ...]:
        return _make_empty, (base, names, prefix, forward), module.__getstate__()  # type: ignore[no-untyped-call]

    def register_parameter(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        values = module._parameters.get(name)
        if name in names and (values is None or parameter is None or parameter.shape != values.shape):
            raise AttributeError(
                f"{name} of a {prefix}{base.__name__} is computed from values and cannot be set; set it before "
                "attaching, or change the values"
            )
        base.register_parameter(module, name, parameter)

    def prepare_scriptable(module: nn.Module) -> NoReturn:
        _refuse_graph(prefix.lower())

    # Of this file and not of torch, where a compiler would take all tensors of a module for ones of fixed size.
    made: dict[str, Any] = {"__module__": __name__, "__reduce_ex__": reduce, "_expands": (base, names)}
    made |= {"register_parameter": register_parameter, "__prepare_scriptable__": prepare_scriptable}
    if forward is not None:
        made["forward"] = forward
    return type(f"{prefix}{base.__name__}", (base,), made | {name: expanded(name) for name in names})


def _make_empty(base: Any, names: tuple[str, ...], prefix: str, forward: Forward | None) -> nn.Module:
    """For pickling and copying: a module of a class that only exists here, still without its contents."""
    cls = _expanding(base, names, prefix, forward)
    return cls.__new__(cls)


def start_expanding(
    module: nn.Module,
    name: str,
    values: nn.Parameter | None,
    expander: Expander,
    prefix: str,
    forward: Forward | None = None,
) -> None:
    """Let a module keep values, or nothing, in the place of a dense parameter; `forward` may know how to do without."""
    old: Any = type(module)
    base, names = getattr(old, "_expands", (old, ()))
    module.__dict__.setdefault(_EXPANDERS, {})
    expand_by(module, name, expander)
    module._parameters[name] = values
    module.__class__ = _expanding(base, (*names, name), prefix, forward)


def expand_by(module: nn.Module, name: str, expander: Expander) -> None:
    module.__dict__[_EXPANDERS][name] = expander


def stop_expanding(module: nn.Module, name: str, dense: nn.Parameter) -> None:
    """Give a module its dense parameter back."""
    base, names = type(module)._expands  # type: ignore[attr-defined]
    left = tuple(other for other in names if other != name)
    prefix = type(module).__name__.removesuffix(base.__name__)
    module.__class__ = _expanding(base, left, prefix, None) if left else base
    del module.__dict__[_EXPANDERS][name]
    if not left:
        del module.__dict__[_EXPANDERS]
    module._parameters[name] = dense
