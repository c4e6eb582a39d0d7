"""A run in memory: the model, its optimizer and sparsifier, and how far they are."""

from dataclasses import dataclass, field
from math import ceil, isfinite, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import regrow
from regrow.lab.config import Config
from regrow.lab.data import Data
from regrow.lab.data.batches import check_batch_size
from regrow.lab.models import sparse_layers
from regrow.lab.run.compile import compiled
from regrow.lab.run.folder import Row
from regrow.lab.run.ranks import ALONE, Ranks
from regrow.lab.run.spread import dealt, dealt_to_optimizer, replicate, shard, whole
from regrow.lab.run.start import Beginning
from regrow.size import largest_unit

# Kernels chosen by timing them would not give the same bits twice.
_STORAGES: dict[str, str | regrow.Packed] = {"dense": "dense", "packed": regrow.Packed(kernels="sparse")}

STATE_FORMAT = 1


class NotFinite(RuntimeError):
    """Training went astray: the loss is no number any more."""


@dataclass
class Meter:
    """Loss and hits, summed on the device so that no step waits for it."""

    loss: Tensor
    hits: Tensor
    seen: int = 0

    def add(self, loss: Tensor, hits: Tensor, num_targets: int) -> None:
        self.loss += loss.detach().double() * num_targets
        self.hits += hits
        self.seen += num_targets

    def read(self) -> tuple[float, float]:
        """Mean loss, and accuracy in percent."""
        return float(self.loss) / self.seen, 100 * int(self.hits) / self.seen

    def set(self, loss: float | Tensor = 0.0, hits: int | Tensor = 0, seen: int = 0) -> None:
        """In place, as a captured graph goes on adding to the same tensors; filling does not wait for the device."""
        self.loss.fill_(loss)
        self.hits.fill_(hits)
        self.seen = seen


def new_meter(device: torch.device) -> Meter:
    return Meter(torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), dtype=torch.int64, device=device))


@dataclass
class Training:
    """Knows one step, and how to be saved and restored."""

    config: Config
    data: Data
    device: torch.device
    beginning: Beginning
    is_compiled: bool = False
    ranks: Ranks = ALONE
    step: int = 0
    seconds: float = 0.0
    metrics: list[Row] = field(default_factory=list)
    layers: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.config
        check_batch_size(config.batch_size, self.data.num_train, str(config.data))
        self.ranks.check_batch_size(config.batch_size)
        self.steps_per_epoch = self.data.num_train // config.batch_size
        self.num_steps = config.num_steps(self.steps_per_epoch)
        self.rate_of = config.rates(self.steps_per_epoch)
        self.model = self.beginning.model.to(self.device)
        self.model.to(memory_format=self._memory_format)  # type: ignore[call-overload]
        self.judge = compiled(self._judge) if self.is_compiled else self._judge
        if self.ranks.shards:
            shard(self.model, self.ranks.count, self.device)
        self.optimizer = config.optimizer.build(self.model.parameters(), self.rate_of(0), self.device)
        self.sparse = regrow.attach(
            self.model,
            self.optimizer,
            config.make_method(self.steps_per_epoch),
            layers=sparse_layers(self.model),
            start=self.beginning.topology,
            seed=config.seed,
            storage=_STORAGES[config.storage],
            rescale=config.start.rescale,
            moments=config.start.moments,
        )
        self._check_budget()
        self._network = self.model
        if self.ranks.is_joined and not self.ranks.shards:  # at the end, as packing gives a network other parameters
            self._network = replicate(self.model, self.device)
        self.meter = new_meter(self.device)

    def _check_budget(self) -> None:
        """A topology taken over from another run must have the sparsity that this one is filed under."""
        method, positions = self.sparse.method, sum(prod(layer.shape) for layer in self.sparse.layers)
        if not 0 <= method.budget(positions) - self.sparse.target < largest_unit(self.sparse):
            raise ValueError(
                f"the topology this run starts from has {self.sparse.target} weights, but sparsity {method.sparsity} "
                f"means {method.budget(positions)}; give both runs the same sparsity"
            )

    @property
    def epoch(self) -> int:
        """Whole epochs done, tested and noted."""
        return len(self.metrics)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.rate_of(self.step)

    @property
    def num_epochs(self) -> int:
        """How many there will be; the last one of a run of so many steps may be shorter."""
        return ceil(self.num_steps / self.steps_per_epoch)

    @property
    def _memory_format(self) -> torch.memory_format:
        """Convolutions on a GPU are faster with the channels innermost."""
        return torch.channels_last if self.device.type == "cuda" else torch.contiguous_format

    def _judge(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss on a batch, and how many of its targets are told right."""
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self._memory_format)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            logits = (self._network if self.model.training else self.model)(inputs)
            loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
        return loss, (logits.argmax(-1) == targets).sum()

    def update(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward, backward, optimizer's step, on which the sparsifier rides. Never waits for the device."""
        loss, hits = self.judge(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.clip is not None:
            self.sparse.mask_gradients()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.meter.add(loss, hits, targets.numel())

    def check_finite(self) -> None:
        """The sum of the losses stays NaN or infinite once one of them was, on whichever rank."""
        if not isfinite(float(self.total(self.meter).loss)):
            raise NotFinite(
                f"the training loss is not finite any more (epoch {self.epoch + 1}, step {self.step}); lower the "
                "learning rate, e.g. optimizer.lr=0.01"
            )

    def finish_epoch(self, test_loss: float, test_accuracy: float) -> None:
        """Note how the epoch went."""
        self.check_finite()
        train_loss, train_accuracy = self.total(self.meter).read()
        self.metrics.append(
            {
                "epoch": self.epoch + 1,
                "step": self.step,
                "seconds": round(self.seconds, 3),
                "lr": self.rate_of(self.step - 1),
                "train_loss": train_loss,
                "train_accuracy": train_accuracy,
                "test_loss": test_loss,
                "test_accuracy": test_accuracy,
                "active": self.sparse.active,
                "sparsity": self.sparse.sparsity,
            }
        )
        self.note_layers()
        self.meter.set()

    def total(self, meter: Meter) -> Meter:
        """What all ranks have summed up together."""
        if not self.ranks.is_joined:
            return meter
        loss, hits, seen = self.ranks.everyones([meter.loss, meter.hits, meter.seen]).sum(0)
        return Meter(loss, hits, int(seen))

    def _set_meter(self, rows: Tensor) -> None:
        """As many ranks as there were go on with their own sums, so that not a bit is added up otherwise."""
        if len(rows) == self.ranks.count:
            loss, hits, seen = rows[self.ranks.rank].tolist()
        else:
            loss, hits, seen = (rows.sum(0) * self.ranks.is_first).tolist()
        self.meter.set(loss, hits, int(seen))

    def note_layers(self) -> None:
        self.layers.append({"epoch": self.epoch, **{layer.name: layer.active for layer in self.sparse.layers}})

    def state(self) -> dict[str, Any]:
        """All that a fresh process needs to go on with the same bits."""
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "seconds": self.seconds,
            "threads": torch.get_num_threads(),
            "is_compiled": self.is_compiled,
            "metrics": self.metrics,
            "layers": self.layers,
            "meters": self.ranks.everyones([self.meter.loss, self.meter.hits, self.meter.seen]),
            "model": whole(self.model.state_dict()),
            "optimizer": whole(self.optimizer.state_dict()),
            "sparse": whole(self.sparse.state_dict()),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(dealt(state["model"], self.model.state_dict()))
        self.optimizer.load_state_dict(dealt_to_optimizer(state["optimizer"], self.optimizer))
        self.sparse.load_state_dict(dealt(state["sparse"], self.sparse.state_dict()))
        self._set_meter(torch.as_tensor(state["meters"]) if "meters" in state else torch.tensor([state["meter"]]))
        self.step, self.seconds = state["step"], state["seconds"]
        self.metrics, self.layers = state["metrics"], state["layers"]
