"""What a run is: settings, the paper's below them, the components that own them, and the id they make."""

from regrow.lab.config.config import Config, make_config, parent_id, parent_of, read_config, spell_out
from regrow.lab.config.start import Start

__all__ = ["Config", "Start", "make_config", "parent_id", "parent_of", "read_config", "spell_out"]
