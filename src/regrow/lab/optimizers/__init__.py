"""Optimizers by name, one file each; and any other of torch.optim."""

from importlib import import_module
from pkgutil import iter_modules

from regrow.lab.optimizers.optimizer import Optimizer

__all__ = ["Optimizer"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
