"""A run as another process is told of it: in plain settings, for that has yet to import what the run is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from regrow.lab.config import Config, imports, read_config
from regrow.lab.config.component import Settings
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, Progress, train
from regrow.lab.sweep.outcome import Ending, how_it_ends


@dataclass(frozen=True)
class Job:
    """`settings`: of the run, and of its branches."""

    run: str
    settings: tuple[Settings, ...]
    imported: tuple[str, ...]
    root: Path
    options: Options

    def train(self, root: Path, tell: Callable[[Progress], object], should_stop: Callable[[], bool]) -> Ending:
        """What the other process does, and how that ends."""
        for name in self.imported:
            imports.bring(name)
        config, *branches = map(read_config, self.settings)
        options = replace(self.options, branches=tuple(branches), on_progress=tell, should_stop=should_stop)
        return how_it_ends(partial(train, config, root, options), RunFolder(root / self.run))


def job_of(config: Config, branches: Sequence[Config], root: Path, options: Options) -> Job:
    """What there is to tell of a run and those that wait for its state."""
    settings = tuple(one.settings() for one in (config, *branches))
    return Job(config.id, settings, tuple(imports.brought()), root, options)
