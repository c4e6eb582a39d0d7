"""What a method adds to an ordinary training step."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pull_to_zero(gradients: Sequence[Tensor], weights: Sequence[Tensor], strength: float, scale: Tensor | None) -> None:
    """L1 regularisation: add strength * sign(w) to the gradients, in place. Inactive weights are 0 and stay alone.

    `scale`: what the gradients were multiplied by and will be divided by again (loss scaling).
    """
    signs = torch._foreach_sign(list(weights))
    if scale is not None:
        signs = torch._foreach_mul(signs, scale)
    torch._foreach_add_(list(gradients), signs, alpha=strength)


def drift_and_noise(signs: Tensor, noise: Tensor, rates: float | Tensor, l1: float, temperature: float) -> Tensor:
    """DeepR's random walk (Bellec et al., 2018, eq. 1): drift by -rate * l1 towards zero plus sqrt(2 rate T) noise.

    `signs` is true where a weight belongs to the positive side.
    """
    spread = (2 * temperature * rates) ** 0.5
    towards_zero = torch.where(signs, -l1, l1)
    return noise * spread + towards_zero * rates
