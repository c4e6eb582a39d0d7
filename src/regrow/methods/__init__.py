"""The methods, one file each, and all that a new one is made of: the extension API in one import.

A new file in this folder is found by itself; one anywhere else is a method as soon as it is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from regrow.core.evidence import Evidence, Units
from regrow.core.quantities import Quantities
from regrow.core.rewire import Memory
from regrow.core.row import Tally
from regrow.core.rules import allot, grow, prune
from regrow.core.schedules import Schedule, cosine, cubic, value_at
from regrow.core.units import Block, Granularity
from regrow.methods.effects.effect import Effect
from regrow.methods.method import METHODS, NEEDS, Method, check, is_number, is_whole, method

__all__ = [
    "METHODS",
    "NEEDS",
    "Block",
    "Effect",
    "Evidence",
    "Granularity",
    "Memory",
    "Method",
    "Quantities",
    "Schedule",
    "Tally",
    "Units",
    "allot",
    "check",
    "cosine",
    "cubic",
    "grow",
    "is_number",
    "is_whole",
    "method",
    "prune",
    "value_at",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
