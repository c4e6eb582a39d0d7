"""The methods, one file each. A new file in this folder is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from regrow.methods.method import METHODS, Method

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method"]
