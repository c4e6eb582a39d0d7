"""Names of parameters, patterns that match them, and what to suggest when nothing does."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_PREFIXES = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module")  # torch.compile, Fabric, FSDP


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """`model.named_parameters()`, tied ones once, without the prefixes of wrappers."""
    for name, parameter in unwrap(model).named_parameters():
        yield clean(name), parameter


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside DataParallel, DistributedDataParallel, torch.compile, Fabric and FSDP."""
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    names = ("module",) if isinstance(model, _WRAPPERS) else _PREFIXES
    return next((inner for name in names if (inner := model._modules.get(name)) is not None), None)


def clean(name: str) -> str:
    """
    >>> clean("blocks.0._orig_mod.conv.weight")
    'blocks.0.conv.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


def match(pattern: str, names: Sequence[str], modules_too: bool = False) -> list[str]:
    """The names that a glob pattern matches; a ValueError with near misses where there is none.

    >>> match("head", ["body.weight", "head.weight"], modules_too=True)
    ['head.weight']
    """
    patterns = [pattern, f"{pattern}.*"] if modules_too else [pattern]
    found = [name for name in names if any(fnmatchcase(name, own) for own in patterns)]
    if not found:
        modules = sorted({name.rpartition(".")[0] for name in names} - {""}) if modules_too else []
        raise ValueError(f"no layer matches {pattern!r}; {suggest(pattern, [*modules, *names])}")
    return found


def suggest(word: str, known: Iterable[str]) -> str:
    """
    >>> suggest("prun", ["prune", "period"]), suggest("AdmW", ["AdamW", "SGD"])
    ("did you mean 'prune'?", "did you mean 'AdamW'?")
    """
    known = list(known)
    begun = [name for name in known if word and name.lower().startswith(word.lower())]
    lower = {name.lower(): name for name in known}
    near = begun[:3] or [lower[name] for name in get_close_matches(word.lower(), lower, n=3, cutoff=0.5)]
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return f"there are: {shown}" if known else "there are none"
