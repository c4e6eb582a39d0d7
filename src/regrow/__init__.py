"""Dynamic sparse training for PyTorch: sparse from the first step to the last, under a budget that never moves."""

from typing import TYPE_CHECKING, Any

from regrow import testing
from regrow.core import __version__
from regrow.core.units import Block
from regrow.files.export import export
from regrow.files.onnx import export_onnx
from regrow.files.save import describe, load, load_tensors, save
from regrow.methods import METHODS, Method
from regrow.sparsifier.attach import attach
from regrow.sparsifier.average import Average
from regrow.sparsifier.history import Rewiring
from regrow.sparsifier.sparsifier import Sparsifier
from regrow.storage.packed import Packed

__all__ = [
    "METHODS",
    "Average",
    "Block",
    "Method",
    "Packed",
    "Rewiring",
    "Sparsifier",
    "__version__",
    "attach",
    "describe",
    "export",
    "export_onnx",
    "load",
    "load_tensors",
    "save",
    "testing",
]

if TYPE_CHECKING:  # for editors; at run time the methods are those that are here
    from regrow.methods.deepr import DeepR
    from regrow.methods.dense import Dense
    from regrow.methods.dsr import DSR
    from regrow.methods.gradual import Gradual
    from regrow.methods.granet import GraNet
    from regrow.methods.gse import GSE
    from regrow.methods.hashed import Hashed
    from regrow.methods.mest import MEST
    from regrow.methods.rigl import RigL
    from regrow.methods.set import SET
    from regrow.methods.snfs import SNFS
    from regrow.methods.static import Static
    from regrow.methods.topk import TopK

    __all__ += ["DSR", "GSE", "MEST", "SET", "SNFS", "DeepR", "Dense", "GraNet", "Gradual", "Hashed", "RigL", "Static"]
    __all__ += ["TopK"]
else:
    __all__ += METHODS


def __getattr__(name: str) -> Any:
    """A method in a file of its own needs no line here."""
    if name in METHODS:
        return METHODS[name]
    raise AttributeError(f"module 'regrow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *METHODS, "__doc__", "__file__", "__name__", "__path__"})
