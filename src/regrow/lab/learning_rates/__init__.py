"""Learning rates as functions of the step, by name, one file each."""

from importlib import import_module
from pkgutil import iter_modules

from regrow.lab.learning_rates.learning_rate import LearningRate, Rates

__all__ = ["LearningRate", "Rates"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
