"""Any other optimizer of torch.optim, by the name of its class."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import nn

from regrow.lab.config.component import Settings, component, near_and_all
from regrow.lab.optimizers.optimizer import Optimizer, on_gpu

_NOT_SETTINGS = {"self", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize"}


@component
class OfTorch(Optimizer):
    """`options` are what its constructor takes; the learning rate and how it is computed are not among them."""

    name: ClassVar[str] = "torch.optim"

    cls: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in dir(torch.optim) if cls.parse(name)]

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        found = getattr(torch.optim, text, None)
        is_one = isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
        return {"cls": text} if is_one and found is not torch.optim.Optimizer else None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        name = given["cls"]
        known = set(inspect.signature(getattr(torch.optim, name)).parameters) - _NOT_SETTINGS
        options = {key: value for key, value in given.items() if key != "cls"}
        for key in options:
            if key not in known:
                raise ValueError(f"optimizer {name} has no field {key!r}; {near_and_all(key, known)}")
        made = cls(cls=name, options=tuple(sorted((key, _plain(value)) for key, value in options.items())))
        made.check()
        return made

    def check(self) -> None:
        try:
            self.build([nn.Parameter(torch.zeros(2, 2))], 0.1, torch.device("cpu"))
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"optimizer {self.cls} cannot be made so: {error}") from None

    def settings(self) -> Settings:
        return {"name": self.cls, **dict(self.options)}

    def departures(self) -> Settings:
        return dict(self.options)

    def said(self) -> str | Settings:
        return self.settings() if self.options else self.cls

    def __str__(self) -> str:
        return self.cls

    def build(self, parameters: Iterable[nn.Parameter], rate: float, device: torch.device) -> torch.optim.Optimizer:
        made = getattr(torch.optim, self.cls)
        can = inspect.signature(made).parameters
        fast = {name: True for name in ("capturable", "fused") if name in can and on_gpu(device)}
        optimizer: torch.optim.Optimizer = made(parameters, lr=rate, **dict(self.options), **fast)
        return optimizer


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
