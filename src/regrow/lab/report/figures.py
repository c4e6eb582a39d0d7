"""All figures of an experiment."""

from regrow.lab.report.canvas import Plate
from regrow.lab.report.layer_figures import layer_plates
from regrow.lab.report.learning_figures import learning_plate
from regrow.lab.report.results import Experiment
from regrow.lab.report.rewiring_figures import rewirings_plate
from regrow.lab.report.size_figures import size_plates
from regrow.lab.report.stopped import without_variants
from regrow.lab.report.stopping_figures import stopping_plate


def plates(experiment: Experiment) -> list[Plate]:
    """In the order of the page; those that have nothing to show are left out."""
    main = without_variants(experiment)
    made = [
        *size_plates(main),
        learning_plate(main),
        stopping_plate(experiment),
        *layer_plates(main),
        rewirings_plate(main),
    ]
    return [plate for plate in made if plate.pictures]
