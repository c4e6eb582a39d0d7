"""Where weights are: how sparsities of layers emerged, and the density of every layer in the end."""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from regrow.lab.report.axes import log_axis, whole_numbers
from regrow.lab.report.canvas import Picture, Plate, Spot, View, paint, spots_along
from regrow.lab.report.formats import slug
from regrow.lab.report.palette import layer_colour, looks
from regrow.lab.report.result import Result
from regrow.lab.report.results import Experiment, Group

_RESIDUAL_GROUP = re.compile(r"groups\.(\d+)\.")
_MANY_LAYERS = 9
_ROOM = 54  # letters below an axis


def representatives(experiment: Experiment, fits: Callable[[Result], bool]) -> dict[str, Result]:
    """One run of each label that fits: the median one at the chosen sparsity, or at the label's highest."""
    found: dict[str, Group] = {}
    for group in experiment.groups:
        better = group.label not in found or group.sparsity == experiment.chosen_sparsity
        if better and fits(group.representative):
            found[group.label] = group
    return {label: group.representative for label, group in found.items()}


def moves_weights(result: Result) -> bool:
    """Whether layers gave weights to one another: their numbers changed while the total stayed."""
    names = [layer.name for layer in result.layers]
    rows = [[row.get(name, 0.0) for name in names] for row in result.layer_counts]
    if len(rows) < 2 or not names:
        return False
    totals = [sum(row) for row in rows]
    stays = max(totals) - min(totals) <= 0.02 * max(totals)
    return stays and any(abs(last - first) > 0.01 * first for first, last in zip(rows[0], rows[-1], strict=True))


def layer_plates(experiment: Experiment) -> list[Plate]:
    """How the sparsities of layers emerged, for each method that moves weights between them, and of residual groups."""
    runs = representatives(experiment, moves_weights)
    caption = (
        "All layers share one budget; how much of it each gets is decided while training. One run per method, the "
        "median one; all on one scale."
    )
    layers = {label: run.sparsities() for label, run in runs.items()}
    groups = {label: found for label, run in runs.items() if (found := residual_groups(run))}
    return [
        Plate("Layer sparsities emerging", caption, [View(_emerging(experiment, runs, layers, "layer"))]),
        Plate(
            "The same by residual group",
            "Of all weights in the layers of a group.",
            [View(_emerging(experiment, runs, groups, "residual group"))],
        ),
    ]


def residual_groups(result: Result) -> dict[str, list[float]]:
    """The sparsity of every residual group over time; empty for networks that have none."""
    members: dict[str, list[tuple[str, int]]] = {}
    for layer in result.layers:
        found = _RESIDUAL_GROUP.match(layer.name)
        name = f"group {int(found[1]) + 1}" if found else layer.name.removesuffix(".weight")
        members.setdefault(name, []).append((layer.name, layer.positions))
    if not any(name.startswith("group ") for name in members):
        return {}
    return {
        name: [
            1 - sum(row.get(layer, 0.0) for layer, _ in some) / sum(size for _, size in some)
            for row in result.layer_counts
        ]
        for name, some in members.items()
    }


Sparsities = Mapping[str, Sequence[float]]


def _emerging(
    experiment: Experiment, runs: Mapping[str, Result], found: Mapping[str, Sparsities], what: str
) -> list[Picture]:
    """A picture per run, all with the same ends."""
    seen = [value for sparsities in found.values() for values in sparsities.values() for value in values]
    return [
        _layers_picture(experiment, (label, runs[label]), sparsities, what, seen) for label, sparsities in found.items()
    ]


def _layers_picture(
    experiment: Experiment, named: tuple[str, Result], sparsities: Sparsities, what: str, seen: Sequence[float]
) -> Picture:
    label, result = named
    ends = {name: values[-1] for name, values in sparsities.items() if values}
    sparsest, densest = max(ends, key=lambda name: ends[name]), min(ends, key=lambda name: ends[name])
    alt = (
        f"Sparsity of each {what} over the {experiment.time}s of {label} at sparsity {result.config.sparsity:g}: in "
        f"the end {sparsest} is sparsest ({ends[sparsest]:.3f}), {densest} densest ({ends[densest]:.3f})."
    )
    times = [row["epoch"] for row in result.layer_counts] if experiment.time == "epoch" else result.steps

    def draw(axes: Axes) -> list[Spot]:
        every = 1 if len(sparsities) <= _MANY_LAYERS else (len(sparsities) - 1) / 5
        marked = {round(i * every) for i in range(len(sparsities))}
        spots: list[Spot] = []
        for i, (layer, values) in enumerate(sparsities.items()):
            name = layer.removesuffix(".weight")
            width = 1.8 if len(sparsities) <= _MANY_LAYERS else 1.1
            colour = layer_colour(i, len(sparsities)).light
            axes.plot(times, values, color=colour, label=name if i in marked else None, linewidth=width)
            spots += spots_along(
                times,
                values,
                lambda x, y, name=name: f"{name}, {experiment.time} {x:,.0f}: sparsity {y:.4f}",  # type: ignore[misc]
            )
        pad = max(0.05 * (max(seen) - min(seen)), 0.002)
        axes.set_ylim(min(seen) - pad, max(seen) + pad)
        axes.set_xlabel(experiment.time)
        axes.set_ylabel("sparsity")
        axes.margins(x=0.02)
        whole_numbers(axes.xaxis)
        return spots

    title = f"{label}, sparsity {result.config.sparsity:g}: each {what}"
    return paint(f"{experiment.slug}-layers-{slug(label)}-{slug(what)}", title, alt, draw)


def densities_picture(experiment: Experiment, sparsity: float | None) -> list[Picture]:
    """The share of each layer that is active in the end, of all sparse networks of one sparsity."""
    groups = [group for group in experiment.at(sparsity) if group.sparsity is not None and _is_sparse(group)]
    if not groups:
        return []
    densities = {group.label: final_densities(group) for group in groups}
    names = list(dict.fromkeys(name for each in densities.values() for name in each))
    alt = f"Density of each layer after training at sparsity {sparsity:g}, of {', '.join(densities)}."

    def draw(axes: Axes) -> list[Spot]:
        return _draw_densities(axes, experiment, names, densities)

    title = f"Final density of each layer, sparsity {sparsity:g}"
    return [paint(f"{experiment.slug}-densities-{sparsity:g}", title, alt, draw)]


def _is_sparse(group: Group) -> bool:
    return any(0 < layer.active < layer.positions for layer in group.representative.layers)


def final_densities(group: Group) -> dict[str, float]:
    """Of each layer by its name, in percent, the median over seeds."""
    found: dict[str, list[float]] = {}
    for result in group.results:
        for layer in result.layers:
            found.setdefault(layer.name.removesuffix(".weight"), []).append(100 * layer.active / layer.positions)
    return {name: median(some) for name, some in found.items()}


def _draw_densities(
    axes: Axes, experiment: Experiment, names: Sequence[str], densities: Mapping[str, Mapping[str, float]]
) -> list[Spot]:
    """Side by side within a layer, where they would hide one another: many methods give all layers the same."""
    its_looks = {label: its_look for label, its_look in looks(experiment).items() if label in densities}
    spots: list[Spot] = []
    for i, (label, its_look) in enumerate(its_looks.items()):
        shift = 0.6 * ((i + 0.5) / len(its_looks) - 0.5)
        found = {name: density for name, density in densities[label].items() if density > 0}
        xs, ys = [names.index(name) + 1 + shift for name in found], list(found.values())
        line = axes.plot(xs, ys, label=label, linewidth=0.8, markersize=5 if len(names) <= _MANY_LAYERS else 3)[0]
        its_look.on(line)
        spots += [Spot(x, y, f"{label}, {name}: {y:.3g} %") for name, x, y in zip(found, xs, ys, strict=True)]
    axes.set_xlim(0.5, len(names) + 0.5)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    widened = max(1.0, 2 * low / high) ** 0.5  # rounding to whole weights is nothing to see
    axes.set_ylim(low / widened, high * widened)
    log_axis(axes.yaxis, lambda value: f"{value:g}")
    axes.set_ylabel("density, %")
    if len(names) <= _MANY_LAYERS and sum(len(name) + 2 for name in names) <= _ROOM:
        axes.xaxis.set_major_locator(FixedLocator(range(1, len(names) + 1)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names[round(x) - 1]))
        axes.grid(visible=False, axis="x")
    else:
        axes.set_xlabel("layer, counted from the input")
        whole_numbers(axes.xaxis)
    return spots
