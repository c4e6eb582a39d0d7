"""What is averaged over ranks beside the gradients that DistributedDataParallel averages."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from regrow.distributed.wrappers import replicas_of

_KNOWN: "WeakValueDictionary[int, DistributedDataParallel]" = WeakValueDictionary()
"""By one of its parameters the wrapper that averages their gradients, since to look for it takes a while."""


def average(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Replace each tensor by its mean over the ranks that average the gradient of the parameter beside it, if any."""
    for tensor, parameter in pairs:
        wrapper = _wrapper_of(parameter) if len(tensor) else None
        if wrapper is not None:
            tensor.div_(dist.get_world_size(wrapper.process_group))
            dist.all_reduce(tensor, group=wrapper.process_group)


def _wrapper_of(parameter: Tensor) -> DistributedDataParallel | None:
    known = _KNOWN.get(id(parameter))
    if known is not None and any(own is parameter for own in known.parameters()):
        return known
    found = next(iter(replicas_of([parameter])), None)
    if found is not None:
        _KNOWN[id(parameter)] = found
    return found
