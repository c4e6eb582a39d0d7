"""Ranks that average their gradients must be sparse alike: they exchange one digest each, and say who differs in what.

It goes through the store by which the process group was set up, and not through a collective: a rank that never comes
makes the others wait for a while and say so, whatever the backend is.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store

PATIENCE = timedelta(seconds=120)
"""How long the others are waited for. They have just exchanged gradients, and so are not far."""

REMEDIES = {
    "layers": "other sparse layers than rank {}; attach alike on every rank",
    "method": "another method than rank {}; attach with the same on every rank",
    "moments": "other moments of grown weights than rank {}; attach with the same on every rank",
    "seed": "another seed than rank {}; give every rank the same",
    "step": "taken another number of sparse steps than rank {}; load the same states on every rank",
    "start": "another start than rank {}; attach with the same on every rank",
    "topology": "another topology than rank {}; attach after wrapping the model, when all ranks have the same weights",
    "counts": "other numbers of active weights than rank {}; load the same states on every rank",
    "weights": "other weights than rank {} in its sparse layers; attach after wrapping the model, or load the same "
    "states on every rank",
    "gradients": "other gradients than rank {}, so that nobody averages them; call the model through "
    "DistributedDataParallel and, if it is packed or hashed, attach before wrapping it",
}
"""What is compared, in this order, and what is said of a rank that differs."""
_ASKED: Counter[str] = Counter()


def fingerprint(tensors: Iterable[Tensor | None]) -> str:
    """What tells tensors from others, bit for bit, one after the other."""
    crc = 0
    for tensor in tensors:
        flat = torch.zeros(0) if tensor is None else tensor.detach().cpu().contiguous().reshape(-1)
        crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def check_agreement(
    own: Mapping[str, Any],
    group: "ProcessGroup",
    error: type[Exception] = RuntimeError,
    missing: str = "came to no step with a sparse network",
) -> None:
    """Compare what this rank is with the others of a group; an error, the same on all, if they differ."""
    ranks, me = dist.get_process_group_ranks(group), dist.get_rank()
    if len(ranks) < 2:
        return
    store, all_ranks = dist.distributed_c10d._get_default_store(), "-".join(map(str, ranks))
    _ASKED[all_ranks] += 1
    key = f"regrow/{all_ranks}/{_ASKED[all_ranks]}"
    store.set(f"{key}/{me}", json.dumps(own))
    digests = {}
    for rank in ranks:
        try:
            store.wait([f"{key}/{rank}"], PATIENCE)
        except RuntimeError:  # which is what stores raise, each with words of its own
            raise error(
                f"rank {rank} {missing} within {PATIENCE.total_seconds():.0f} s of rank {me}'s first; attach on every "
                "rank that trains the same network"
            ) from None
        digests[rank] = json.loads(store.get(f"{key}/{rank}"))
    if difference := first_difference(digests):
        _let_others_read(store, key, ranks, me)
        raise error(difference)


def first_difference(digests: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Who differs in what from an earlier rank with one of its layers; None if nobody does.

    >>> one, other = {"layers": {"a": "2x3"}, "seed": 1}, {"layers": {"a": "2x3"}, "seed": 2}
    >>> first_difference({0: one, 1: other})
    'rank 1 has another seed than rank 0; give every rank the same (2 and 1)'
    >>> first_difference({0: one, 1: other | {"layers": {"b": "2x3"}}})
    """
    for (first, one), (rank, other) in combinations(digests.items(), 2):
        if not one["layers"].items() & other["layers"].items():
            continue  # other parts of the network, as in a pipeline
        for what, sentence in REMEDIES.items():
            if one.get(what) != other.get(what):
                told = f" ({other[what]} and {one[what]})" if what in ("method", "moments", "seed", "step") else ""
                return f"rank {rank} has {sentence.format(first)}{told}"
    return None


def _let_others_read(store: "Store", key: str, ranks: Sequence[int], me: int) -> None:
    """Whoever holds the store must not end, with an error, before all know of it."""
    with suppress(RuntimeError):  # they have ended themselves
        store.set(f"{key}/{me}/knows", "")
        store.wait([f"{key}/{rank}/knows" for rank in ranks], PATIENCE)
