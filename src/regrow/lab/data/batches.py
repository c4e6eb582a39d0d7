"""Which images make up which batch: a pure function of (seed, epoch), so that resuming needs nothing saved."""

import torch
from torch import Tensor

from regrow.core.random import bits, key

_ORDER = int.from_bytes(b"order")


def epoch_order(num_images: int, *, epoch: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The order in which an epoch visits its images, the same on every device."""
    random = bits(key(seed, epoch, _ORDER), torch.arange(num_images, device=device))
    return random.argsort(stable=True)


def whole_batches(order: Tensor, batch_size: int) -> tuple[Tensor, ...]:
    """Cut an order into batches of one size, dropping the rest.

    >>> [batch.tolist() for batch in whole_batches(torch.arange(5), 2)]
    [[0, 1], [2, 3]]
    """
    num_batches = len(order) // batch_size
    return order[: num_batches * batch_size].view(num_batches, batch_size).unbind()


def check_batch_size(batch_size: int, num_images: int, name: str) -> None:
    """Refuse a batch size that would make an epoch of no batches."""
    if not 1 <= batch_size <= num_images:
        raise ValueError(
            f"batch_size must be between 1 and {num_images}, all that {name} has to train on, got {batch_size}"
        )
