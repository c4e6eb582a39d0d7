"""What a run is: settings, the paper's below them, and the id they make."""

from regrow.lab.config.config import (
    Config,
    Optimizer,
    Start,
    make_config,
    parent_id,
    parent_of,
    read_config,
    spell_out,
)

__all__ = ["Config", "Optimizer", "Start", "make_config", "parent_id", "parent_of", "read_config", "spell_out"]
