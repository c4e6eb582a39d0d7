"""What an optimizer remembers of a parameter, and whether it leaves inactive weights alone."""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from operator import call, is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer


def state_like(optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
    """The state tensors with one entry per weight: momentum, second moments, whatever the optimizer calls them."""
    shape = parameter.shape
    state = optimizer.state.get(parameter, {})
    return [value for value in state.values() if isinstance(value, Tensor) and value.shape == shape]


class SeenState:
    """Which state of some parameters was seen last; weakly, as an optimizer may get another and drop it."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._num_states = len(optimizer.state)
        states = [optimizer.state.get(parameter, _NOTHING) for parameter in parameters]
        self._nums = list(map(len, states))
        self._names = [_first_like(own, parameter) for own, parameter in zip(states, parameters, strict=True)]
        self._seen = [
            ref(own[name]) if name in own else _nothing for own, name in zip(states, self._names, strict=True)
        ]

    def is_current(self) -> bool:
        """Whether it still is what the optimizer has; asked in every step."""
        state = self._optimizer.state
        if len(state) != self._num_states:
            return False
        states = [state.get(parameter, _NOTHING) for parameter in self._parameters]
        has_first = map(is_, map(_get, states, self._names), map(call, self._seen))
        return list(map(len, states)) == self._nums and all(has_first)


_NOTHING: dict[str, Any] = {}
_get = dict.get


def _nothing() -> None:
    return None


def _first_like(state: dict[str, Any], parameter: Tensor) -> str:
    """The name of a tensor with an entry per weight, if there is one among what an optimizer remembers."""
    like = (key for key, own in state.items() if isinstance(own, Tensor) and own.shape == parameter.shape)
    return next(like, "")


_NUM_STEPS = 8  # RAdam divides by its eps, which is 0 in float16, in the sixth


@dataclass(frozen=True)
class Constants:
    """What an optimizer remembers of a parameter that it has not trained: of all weights the same."""

    of_each_weight: dict[str, Tensor]
    of_all: dict[str, Any]

    def spread(self, parameter: Tensor) -> dict[str, Any]:
        """The state that says the same of another parameter."""
        per_weight = {
            name: one.to(parameter.device).expand(parameter.shape).clone() for name, one in self.of_each_weight.items()
        }
        return per_weight | copy.deepcopy(self.of_all)


def constant_state(optimizer: Optimizer, parameter: Tensor) -> Constants:
    """What an optimizer remembers of a parameter; refused if it is not the same for all weights."""
    each, rest = {}, {}
    for name, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            if value.is_meta:
                raise ValueError(
                    f"{type(optimizer).__name__} keeps {name!r} from the start, and a parameter on the meta device has "
                    "none; use another optimizer, or real weights"
                )
            each[name] = value.reshape(-1)[:1].reshape(()).clone()
            if not bool((value == each[name]).all()):
                raise ValueError(
                    f"{type(optimizer).__name__} has trained these parameters already, and its {name!r} cannot go over "
                    "to parameters of another shape; attach right after building the optimizer"
                )
        else:
            rest[name] = copy.deepcopy(value)
    return Constants(each, rest)


def put_in_place(optimizer: Optimizer, old: Tensor, new: Tensor, state: Constants) -> None:
    """Let an optimizer train another parameter in a parameter's stead, in the same group and position."""
    for group in optimizer.param_groups:
        group["params"][:] = [new if parameter is old else parameter for parameter in group["params"]]
    optimizer.state.pop(old, None)
    if state.of_each_weight or state.of_all:
        optimizer.state[new] = state.spread(new)


def check_leaves_zeros_alone(optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """Refuse an optimizer under which a weight, gradient and state of 0 do not stay 0, by trying it on a toy.

    One trial for each parameter group that holds any of the parameters, with its settings, dtype and device.
    """
    ours = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        mine = [parameter for parameter in group["params"] if id(parameter) in ours]
        problem = _try_on_toy(optimizer, group, mine[0]) if mine else None
        if problem:
            raise ValueError(
                f"{type(optimizer).__name__} cannot train a sparse network: {problem}; use one that leaves a weight at "
                "0 while its gradient and state are 0, such as SGD, Adam, AdamW, NAdam, RAdam, RMSprop or Adagrad"
            )


def _try_on_toy(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> str | None:
    """What goes wrong in some steps on a small sparse matrix."""
    # A pattern that does not fall apart into blocks, or an optimizer that mixes rows and columns could pass.
    device = torch.get_default_device() if like.is_meta else like.device
    active = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1]], device=device).bool()
    values = torch.arange(16, dtype=like.dtype, device=device).view(4, 4)
    toy = torch.nn.Parameter(values.sin() * active)
    before = toy.detach().clone()
    for step in range(_NUM_STEPS):
        gradient = (values + step).cos() * active
        try:
            if step == 0:
                trial = fresh_copy(optimizer, group, toy, like)
            take_step(trial, toy, gradient)
        except Exception as error:  # an optimizer we know nothing about may raise anything
            return f"a trial step failed ({type(error).__name__}: {error})"
        if any(not _can_be_cleared(value, toy) for value in trial.state[toy].values()):
            return "it keeps state that has no entry of its own for each weight"
        if step == 0:  # state may begin with a constant, which is cleared once
            for tensor in state_like(trial, toy):
                tensor.masked_fill_(~active, 0)
        if not bool(toy.detach().isfinite().all()):
            return f"it makes weights of {like.dtype} NaN or infinite"
        if not bool((toy.detach()[~active] == 0).all()):
            return "it moves weights that have no gradient"
        if not all(bool((tensor[~active] == 0).all()) for tensor in state_like(trial, toy)):
            return "its state does not stay 0 where there is no gradient"
    return f"{_NUM_STEPS} trial steps moved no weight" if torch.equal(toy.detach(), before) else None


def take_step(trial: Optimizer, toy: torch.nn.Parameter, gradient: Tensor) -> None:
    """A step of the class's own, not of what others put in its place; with a closure where it cannot do without."""

    def closure() -> Tensor:
        toy.grad = gradient.clone()
        return gradient.sum()

    closure()
    step: Any = type(trial).step
    given = signature(step).parameters.get("closure")
    step(trial, closure) if given is not None and given.default is given.empty else step(trial)


def fresh_copy(optimizer: Optimizer, group: dict[str, Any], toy: torch.nn.Parameter, like: Tensor) -> Optimizer:
    """The same optimizer with the settings of one group, in training mode, with no memory and no hooks.

    It has nothing in common with the optimizer, and the toy wherever that has a parameter. State that `like` already
    has, as optimizers that make it when they are built expect, starts at 0.
    """
    twin: Optimizer = object.__new__(type(optimizer))
    parameters = [parameter for own in optimizer.param_groups for parameter in own["params"]]
    memo = {id(optimizer): twin} | {id(parameter): toy for parameter in parameters}
    left_out = {"state", "param_groups"} | {name for name in vars(optimizer) if name.startswith("_optimizer_")}
    for name in vars(optimizer).keys() - left_out:
        twin.__dict__[name] = _copy(vars(optimizer)[name], memo)
    twin.state = defaultdict(dict)
    for name, value in optimizer.state.get(like, {}).items():
        if isinstance(value, Tensor):
            value = torch.zeros_like(toy, dtype=value.dtype) if value.shape == like.shape else value.clone()
        twin.state[toy][name] = value
    rate = group.get("lr")
    if rate is not None and float(rate) == 0:  # a warm-up may begin at 0, where nothing can be seen
        rate = torch.full_like(rate, 1e-2) if isinstance(rate, Tensor) else 1e-2
    settings = {name: _copy(value, memo) for name, value in group.items() if name not in ("params", "param_names")}
    twin.param_groups = [{**settings, "params": [toy], "lr": rate}]
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, hooks, OrderedDict())
    if callable(start := getattr(twin, "train", None)):  # schedule-free ones
        start()
    return twin


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Settings are copied; what cannot be, such as a process group, is none."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # other people's objects may raise anything
        return value


def _can_be_cleared(value: object, parameter: Tensor) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 or value.shape == parameter.shape
    return value is None or isinstance(value, (bool, int, float, str))
