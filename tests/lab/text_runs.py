"""Runs of a language model on a text that train in a fraction of a second."""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import one_hot

from regrow.lab.config import Config, make_config
from regrow.lab.config.component import component
from regrow.lab.models import Inputs, Model, Shape


class NextByte(nn.Module):
    """Logits of the next byte, of the last one alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(256, width, bias=False)
        self.out = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.embedding(one_hot(tokens.long(), 256).float()))
        return logits

    def sparse_layers(self) -> list[str]:
        return ["out.weight"]


@component
class LastByte(Model):
    """A language model that can be trained in no time."""

    name: ClassVar[str] = "last_byte"
    usual: ClassVar[Inputs] = Shape((8,), 256)
    context: int = 8

    def build(self, inputs: Inputs, width: float = 1.0) -> NextByte:
        return NextByte(round(16 * width))


def a_text(folder: Path, content: bytes = b"to be, or not to be: " * 200) -> Path:
    path = folder / "a.txt"
    path.write_bytes(content)
    return path


def on(path: Path, **settings: Any) -> Config:
    """A run of SET on that text."""
    told = settings.pop("data", {})
    table = {"name": "text", "path": str(path), **told} if isinstance(told, dict) else told
    length = {} if "epochs" in settings else {"max_steps": 25}
    return make_config(
        {
            "model": "last_byte",
            "data": table,
            **length,
            "batch_size": 4,
            "optimizer": {"lr": 0.1},
            "method": {"name": "SET", "sparsity": 0.5, "period": 4},
            **settings,
        }
    )
