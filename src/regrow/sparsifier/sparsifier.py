"""The sparsifier: what `attach` returns, and by which one asks, saves and ends what happens in a step."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from regrow.methods.method import Method
from regrow.sparsifier.hints import hint, of_other_settings
from regrow.sparsifier.history import Callbacks, Rewiring
from regrow.sparsifier.left_dense import LeftDense
from regrow.sparsifier.state import checked
from regrow.sparsifier.steps import Steps
from regrow.sparsifier.summary import LayerInfo, summarise
from regrow.storage.base import Storage


class Sparsifier:
    """Keeps a network sparse while its optimizer trains it. Made by `regrow.attach`."""

    def __init__(self, steps: Steps, left_dense: LeftDense) -> None:
        self.left_dense = left_dense
        """What trains and stays dense."""
        self._steps = steps

    def __repr__(self) -> str:
        """
        >>> import regrow, torch
        >>> model = torch.nn.Linear(10, 10)
        >>> regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.SET(sparsity=0.9))
        <Sparsifier SET, step 0: 10 of 100 weights in 1 layer>
        """
        name, num_layers = type(self.method).__name__, len(self.storage.layers)
        num_weights = sum(layer.num_weights for layer in self.storage.layers)
        of_layers = f"{num_layers} layer{'s' if num_layers > 1 else ''}"
        where = f"step {self.num_steps:,}" if self._steps.are_on else f"detached at step {self.num_steps:,}"
        return f"<Sparsifier {name}, {where}: {self.active:,} of {num_weights:,} weights in {of_layers}>"

    # What it knows

    @property
    def method(self) -> Method:
        """The rules it goes by."""
        return self._steps.method

    @property
    def seed(self) -> int:
        """Of which, with the step, all that is random is a function."""
        return self._steps.seed

    @property
    def moments(self) -> str:
        """How the state of an adaptive optimizer begins for weights that grow."""
        return self._steps.moments.how

    @property
    def storage(self) -> Storage:
        """Where the weights are."""
        return self._steps.storage

    @property
    def optimizer(self) -> Optimizer:
        """What trains them."""
        return self._steps.optimizer

    @property
    def num_steps(self) -> int:
        """Optimizer steps counted so far."""
        return self._steps.number

    @property
    def budget(self) -> int:
        """How many weights are to be active now; of coarser units nearly as many are."""
        return self._steps.tally.budget

    @property
    def target(self) -> int:
        """How many are to be active in the end; the budget, unless the method moves it."""
        return self._steps.tally.target

    @property
    def active(self) -> int:
        """Active weights now."""
        tally = self._steps.tally
        return tally.weights_in(tally.active)

    @property
    def sparsity(self) -> float:
        """The inactive fraction of all positions now."""
        tally = self._steps.tally
        return 1 - self.active / tally.weights_in(tally.num_units)

    @property
    def layers(self) -> list[LayerInfo]:
        """Every sparse layer, in the order of the row."""
        return [
            LayerInfo(layer.name, layer.shape, n * layer.unit_size, 1 - n / layer.num_units)
            for n, layer in zip(self._steps.tally.active, self.storage.layers, strict=True)
        ]

    @property
    def history(self) -> list[Rewiring]:
        """One record per rewiring, the last 10,000; for methods that rewire every step one record with the totals."""
        return self._steps.history()

    @property
    def totals(self) -> Rewiring | None:
        """All rewirings in one record; None before the first."""
        return next(iter(self._steps.totals()), None)

    @property
    def on_rewire(self) -> Callbacks:
        """What is called with the record of each rewiring; a list, and a decorator."""
        return self._steps.on_rewire

    def masks(self) -> dict[str, Tensor]:
        """Copies of the masks by layer name: true where a weight is active. None ({}) where positions share values."""
        rewirable = self._steps.rewirable
        return {} if rewirable is None else rewirable.masks()

    def summary(self) -> str:
        """A table of the layers, what is left dense, and what beside the weights is."""
        title = f"{type(self.method).__name__}, step {self.num_steps:,}, budget {self.budget:,}"
        lines = [summarise(title, self.layers), str(self.left_dense)]
        if "dense_step" in self.method.needs:
            num_places = sum(layer.num_weights for layer in self.storage.layers)
            lines.append(f"exempt: gradients and optimizer state, which are those of all {num_places:,} places")
        return "\n".join(filter(None, lines))

    def metrics(self) -> dict[str, int | float]:
        """Where the network is, in plain numbers, for whatever logs them."""
        threshold = self._steps.memory.get("threshold")
        return {
            "sparsity": self.sparsity,
            "active": self.active,
            "budget": self.budget,
            **({} if threshold is None else {"threshold": threshold}),
            **{f"density/{layer.name}": layer.density for layer in self.layers},
        }

    def check(self) -> None:
        """Refuse, with a ValueError, a model whose weights are not those that are kept sparse; changes nothing."""
        self._check_attached()
        self._steps.check()

    # For loops that do some of the work themselves

    def mask_gradients(self) -> None:
        """Zero the gradients of inactive weights now, e.g. before clipping; the hook does it otherwise.

        What a rewiring needs of a gradient and the L1 term are taken from each new one once, however often this is
        called: so where gradients accumulate call it after the last backward pass. Under a GradScaler leave
        `zero_grad(set_to_none=True)` as it is: a gradient tensor that is used again after a skipped step looks like one
        that goes on accumulating.
        """
        self._check_attached()
        self._steps.mask_gradients()

    def advance(self) -> None:
        """Count one step and rewire if one is due: for loops whose steps run without hooks, as in a captured graph.

        A graph may hold the rewiring too, where an effect does it on the GPU, and this only counts it.
        """
        self._check_attached()
        self._steps.advance()

    # How it is saved, copied and taken off

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as tensors, numbers and strings, in the layers' own shapes."""
        return self._steps.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; checks first that it belongs to the same method, layers and budget."""
        self._check_attached()
        steps = self._steps
        state = checked(state, steps.method, steps.storage, steps.tally, steps.moments)
        hint([of_other_settings(state, steps.method)])
        steps.restore(state)
        steps.zero_inactive()

    def detach(self) -> None:
        """Take the hooks off: what is left is an ordinary model, with zeros or equal weights, and its optimizer."""
        self._steps.end()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sparsifier":
        """A copy on the copied model and optimizer: deepcopy all three together."""
        return Sparsifier(copy.deepcopy(self._steps, memo), self.left_dense)

    def _check_attached(self) -> None:
        if not self._steps.are_on:
            raise RuntimeError("this sparsifier was detached; attach again to go on training sparsely")
