"""L1: a pull of active weights towards 0."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regrow.methods.effects.l1 import L1, pull_to_zero


@dataclass
class Held:
    """Weights that lie where the optimizer trains them."""

    parameters: Sequence[Tensor]

    @property
    def weights(self) -> Sequence[Tensor]:
        return [parameter.detach() for parameter in self.parameters]


def pulling(strength: float, *weights: Sequence[float]) -> tuple[L1, list[Tensor]]:
    """The effect on some weights, whose gradients are all 1."""
    parameters = [torch.nn.Parameter(torch.tensor(own)) for own in weights]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    effect = L1(strength)
    effect.attach(Held(parameters), torch.optim.SGD(parameters, lr=0.1), seed=0)
    return effect, parameters


def gradients(parameters: Sequence[Tensor]) -> list[list[float]]:
    return [parameter.grad.tolist() for parameter in parameters]


def test_l1_pulls_every_active_weight_towards_zero_by_the_same_amount():
    weights = torch.tensor([0.9, -0.1, 0.0, -0.2, 0.3, 0.0, 0.05, -0.6])
    gradient = torch.full((8,), 1.0)
    pull_to_zero([gradient], [weights], 0.25, None)
    assert gradient.tolist() == [1.25, 0.75, 1.0, 0.75, 1.25, 1.0, 1.25, 0.75]
    assert weights[0] == torch.tensor(0.9)


def test_l1_acts_on_every_layer():
    gradients = [torch.zeros(2), torch.zeros(1, dtype=torch.float64)]
    pull_to_zero(gradients, [torch.tensor([1.0, -1.0]), torch.tensor([2.0]).double()], 0.5, None)
    assert [gradient.tolist() for gradient in gradients] == [[0.5, -0.5], [0.5]]


def test_l1_is_scaled_like_the_gradient_it_joins():
    # A loss scaled by 1024 has gradients 1024 times as large, to be divided again later.
    gradient = torch.zeros(2)
    pull_to_zero([gradient], [torch.tensor([1.0, -1.0])], 0.5, torch.tensor(1024.0))
    assert (gradient / 1024).tolist() == [0.5, -0.5]


def test_the_effect_pulls_where_gradients_are_new_and_leaves_weights_alone():
    effect, parameters = pulling(0.25, [0.9, -0.1, 0.0], [-0.5])
    effect.before_step([0], None)
    assert gradients(parameters) == [[1.25, 0.75, 1], [1]]
    effect.before_step([1], None)
    assert gradients(parameters) == [[1.25, 0.75, 1], [0.75]]
    assert parameters[0].tolist() == torch.tensor([0.9, -0.1, 0.0]).tolist()


def test_where_no_gradient_is_new_nothing_happens():
    effect, parameters = pulling(0.25, [0.9, -0.1])
    effect.before_step([], None)
    assert gradients(parameters) == [[1, 1]]


def test_the_effect_knows_of_loss_scaling():
    effect, parameters = pulling(0.25, [0.9, -0.1])
    effect.before_step([0], torch.tensor(8.0))
    assert gradients(parameters) == [[3, -1]]  # 1 +- 0.25 * 8
