"""Build the table of a target from its finished runs, with the functions that `experiments.toml` names."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.reproduce.experiments import DATA, Experiment, Row
from bench.reproduce.runs import Outcome
from bench.reproduce.tables import Cell, Figure, Mean, Point, Table
from bench.reproduce.timing import Timing, time_training
from lightcake_fast.data import load_dataset
from lightcake_fast.data.statistics import compute_statistics
from lightcake_fast.models import MODELS

Finished = Mapping[tuple[str, str], Sequence[Outcome]]  # by row and data set; one outcome per seed

FIGURES_NOTE = (
    "MRR / MR / Hits@3 of the test split, filtered; ties get the mean rank unless a row says otherwise."
)
PAPER_NOTE = "The paper ranks ties by relation id. The column 'ours is' compares the MRR."
HALF_A_DIGIT = 5e-4  # precision of the paper's three digits; used as the deviation with one seed
NEAR = 2e-3


@dataclass(frozen=True)
class Place:
    """One row on one data set.

    Attributes:
        experiment: The experiment.
        dataset: The data set.
        row: The row; without meaning if the experiment has no rows.
        runs: The runs of each row on the data set, by label.
        data_dir: Folder of the data sets, if given.
    """

    experiment: Experiment
    dataset: str
    row: Row
    runs: Mapping[str, Sequence[Outcome]]
    data_dir: str | None = None

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The runs of the row."""
        return self.runs[self.row.label]


class Measured(NamedTuple):
    """The content of a table for one row and data set.

    Attributes:
        cells: Texts by column. A column that is None in every line is left out.
        record: Numbers by name.
        notes: Lines below the table.
    """

    cells: Mapping[str, str | None]
    record: Mapping[str, Cell]
    notes: Sequence[str] = ()


def build(
    experiment: Experiment, datasets: Sequence[str], finished: Finished, data_dir: str | None = None
) -> Table:
    """Build the table of an experiment from runs of every row on every data set."""
    measure = MEASURES[experiment.measure]
    lines: dict[tuple[str, ...], dict[tuple[str, str], str | None]] = {}
    records: list[dict[str, Cell]] = []
    notes: list[str] = []
    for dataset in datasets:
        runs = {row.label: finished[row.label, dataset] for row in experiment.rows}
        for row in experiment.rows or (Row(""),):
            found = measure(Place(experiment, dataset, row, runs, data_dir))
            names = {"data set": dataset} | ({experiment.varies: row.label} if experiment.rows else {})
            start = (row.label,) if experiment.wide else tuple(names.values())
            block = dataset if experiment.wide else ""
            lines.setdefault(start, {}).update({(block, name): cell for name, cell in found.cells.items()})
            records.append({**names, **found.record})
            notes += found.notes
    first = [experiment.varies] if experiment.wide else list(names)
    columns = dict.fromkeys(column for cells in lines.values() for column in cells)
    kept = [column for column in columns if any(cells[column] is not None for cells in lines.values())]
    rows = [[*start, *(cells[column] or "" for column in kept)] for start, cells in lines.items()]
    figure = FIGURES[experiment.figure](experiment, datasets, finished) if experiment.figure else None
    every = tuple(dict.fromkeys([*notes, *experiment.notes]))
    return Table(experiment.title, [*first, *(name for _, name in kept)], rows, every, records, figure)


def metric(outcomes: Sequence[Outcome], split: str, name: str) -> Mean:
    """Return a metric of all triples of a split over seeds."""
    return Mean.of([outcome.results[split]["all"][name] for outcome in outcomes])


def statistics_of_data(place: Place) -> Measured:
    """Measure a data set, with the paper's mean context sizes."""
    name, paper = place.dataset, DATA["paper"]
    figures = compute_statistics(load_dataset(name, place.data_dir))
    theirs = paper["context_sizes"].get(name)
    cells = {
        "entities": f"{figures.entities:,}",
        "relations": f"{figures.relations:,}",
        **{split: f"{count:,}" for split, count in figures.triples.items()},
        "mean contexts (entity / relation)": (
            f"{figures.mean_entity_context:.1f} / {figures.mean_relation_context:.1f}"
        ),
        "paper": f"{theirs[0]:.1f} / {theirs[1]:.1f}" if theirs else "",
        "test triples with an unseen entity": f"{figures.test_triples_with_unseen:,}",
    }
    record = {
        "entities": figures.entities,
        "relations": figures.relations,
        **figures.triples,
        "mean_entity_context": figures.mean_entity_context,
        "mean_relation_context": figures.mean_relation_context,
        "paper_entity_context": theirs[0] if theirs else None,
        "paper_relation_context": theirs[1] if theirs else None,
        "test_triples_with_unseen": figures.test_triples_with_unseen,
    }
    swapped = [f"The paper's table has valid and test of {name} swapped."] * (name in paper["swapped_splits"])
    return Measured(cells, record, swapped)


def verdict(ours: Mean, theirs: float) -> str:
    """Compare our MRR with the paper's: "above", "equal" (within the deviation), or "below"."""
    if abs(ours.mean - theirs) <= (HALF_A_DIGIT if ours.deviation is None else ours.deviation):
        return "equal"
    return "above" if ours.mean > theirs else "below"


def comparison(place: Place) -> Measured:
    """Measure the test results, with the paper's results if it has them."""
    names = ("mrr", "mr", "hits_at_3")
    mrr, mr, hits = (metric(place.outcomes, "test", name) for name in names)
    cells: dict[str, str | None] = {place.dataset: f"{mrr.cell(4)} / {mr.mean:.3f} / {hits.mean:.4f}"}
    record: dict[str, Cell] = dict(zip(names, (mrr.mean, mr.mean, hits.mean), strict=True))
    record |= {"mrr_deviation": mrr.deviation, "seeds": len(place.outcomes)}
    theirs = _published(place)
    if theirs is None:
        return Measured({**cells, "paper": None, "ours is": None}, record, [FIGURES_NOTE])
    cells["paper"] = f"{theirs[0]:.3f} / {theirs[1]:.3f} / {theirs[2]:.3f}"
    cells["ours is"] = verdict(mrr, theirs[0])
    record |= {f"paper_{name}": value for name, value in zip(names, theirs, strict=True)}
    return Measured(cells, record | {"ours_is": cells["ours is"]}, [FIGURES_NOTE, PAPER_NOTE])


def _published(place: Place) -> list[float] | None:
    found: list[float] | None = DATA["paper"]["results"].get(place.dataset, {}).get(place.row.published)
    return found


def entities(place: Place) -> Measured:
    """Measure the test results of entity prediction, with the published results of the scores alone."""
    found = comparison(place)
    theirs: float | None = DATA["published_entity_mrr"].get(place.row.label, {}).get(place.dataset)
    hits = {name: metric(place.outcomes, "test", name).mean for name in ("hits_at_1", "hits_at_10")}
    cells = {
        place.dataset: found.cells[place.dataset],
        "Hits@1 / @10": f"{hits['hits_at_1']:.4f} / {hits['hits_at_10']:.4f}",
        "published MRR": "" if theirs is None else f"{theirs:.3f}",
    }
    ours = {name: value for name, value in found.record.items() if "paper" not in name and name != "ours_is"}
    return Measured(cells, {**ours, **hits, "published_mrr": theirs}, [FIGURES_NOTE])


@cache
def _timing(folder: Path, data_dir: str | None) -> Timing:
    return time_training(folder, data_dir)


def efficiency(place: Place) -> Measured:
    """Measure the contexts, size, accuracy, speed and memory of a model."""
    first = place.outcomes[0]
    timing, against = _timing(first.folder, first.data_dir), place.runs.get("R-GCN")
    theirs, mrr = _published(place), metric(place.outcomes, "test", "mrr").mean
    peak = max((run.peak_bytes for run in place.outcomes if run.peak_bytes), default=None)
    parameters, layer, speed = first.results["parameters"], timing.layer_seconds, timing.triples_per_second
    contexts = zip(
        ("entity contexts", "relation contexts", "size"),
        DATA["complexity"][place.row.settings["model"]],
        strict=True,
    )
    ratio = ""
    if against:
        ratio = f"{speed / _timing(against[0].folder, against[0].data_dir).triples_per_second:.2f}"
    cells = {
        **dict(contexts),
        "parameters": f"{parameters:,}",
        "MRR": f"{mrr:.4f}",
        "paper": f"{theirs[0]:.3f}" if theirs else "",
        "layer, ms": f"{layer * 1e3:.1f}" if layer else "",
        "training triples/s": f"{speed:,.0f}",
        "of R-GCN": ratio,
        "peak memory, MB": f"{peak / 1e6:,.0f}" if peak else "",
    }
    record: dict[str, Cell] = {
        "parameters": parameters,
        "mrr": mrr,
        "paper_mrr": theirs[0] if theirs else None,
    }
    record |= {"layer_seconds": layer, "triples_per_second": speed, "peak_bytes": peak}
    return Measured(cells, record)


def best_and_equal(means: Mapping[str, Mean]) -> tuple[str, set[str]]:
    """Return the name of the highest mean, and the names less than two deviations below it.

    Each pair uses the larger deviation, or the known one. Two means of one seed each are not equal.
    """
    best = max(means, key=lambda name: means[name].mean)
    equal = set()
    for name, (mean, deviation) in means.items():
        known = [d for d in (deviation, means[best].deviation) if d is not None]
        if name != best and known and means[best].mean - mean < 2 * max(known):
            equal.add(name)
    return best, equal


def rivals(place: Place) -> Measured:
    """Measure validation and test results, and mark the best row, its equals, and the gain from layers."""
    outcomes, label = place.outcomes, place.row.label
    test = {name: metric(runs, "test", "mrr") for name, runs in place.runs.items()}
    best, equal = best_and_equal(test)
    standing = "best" if label == best else "equal" if label in equal else "below"
    score = place.row.settings.get("score")
    plain = test.get(f"no layers, {MODELS[score].label}") if score else None
    gain = test[label].mean - plain.mean if plain else None
    record: dict[str, Cell] = {"seeds": len(outcomes)}
    for split in ("valid", "test"):
        for name in ("mrr", "mr", "hits_at_3"):
            mean, deviation = metric(outcomes, split, name)
            record |= {f"{split}_{name}": mean, f"{split}_{name}_deviation": deviation}
    record["parameters"] = outcomes[0].results["parameters"]
    record["seconds"] = statistics.fmean(outcome.results["seconds"] for outcome in outcomes)
    mrr = test[label].cell(4)
    cells = {
        "seeds": str(len(outcomes)),
        "valid MRR": metric(outcomes, "valid", "mrr").cell(4),
        "test MRR": {"best": f"**{mrr}**", "equal": f"{mrr} ="}.get(standing, mrr),
        "MR": metric(outcomes, "test", "mr").cell(3),
        "Hits@3": metric(outcomes, "test", "hits_at_3").cell(4),
        "over no layers": "" if gain is None else f"{gain:+.4f}",
        "parameters": f"{record['parameters']:,}",
        "s": f"{record['seconds']:.0f}",
    }
    return Measured(cells, {**record, "over_no_layers": gain, "standing": standing})


def speed(place: Place) -> Measured:
    """Measure the seconds of training to the validation MRR that all runs of the first row reach.

    A second column gives the seconds to an MRR slightly below it.
    """
    first, histories = place.experiment.rows[0].label, [run.history for run in place.outcomes]
    goal = min(max(mrr for _, mrr in run.history) for run in place.runs[first])
    reached = Mean.of([max(mrr for _, mrr in history) for history in histories])
    total = statistics.fmean(history[-1][0] for history in histories)
    cells = {"valid MRR": reached.cell(4), "s in total": f"{total:.0f}"}
    record: dict[str, Cell] = {"valid_mrr": reached.mean, "seconds": total, "goal": goal}
    heads = {"seconds_to_goal": f"s to {first}'s MRR", "seconds_to_near": f"s to {NEAR:g} below it"}
    for (name, head), least in zip(heads.items(), (goal, goal - NEAR), strict=True):
        times = [next((s for s, mrr in history if mrr >= least), None) for history in histories]
        there = [time for time in times if time is not None]
        mean, some = statistics.fmean(there) if there else None, len(there) < len(times)
        cells[head] = "never" if mean is None else f"{mean:.0f}" + f" ({len(there)} of {len(times)})" * some
        record[name] = None if some else mean
    return Measured(cells, record)


def by_row(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Figure:
    """Plot the test MRR by the varied property, with one line per data set."""

    def point(row: Row, dataset: str) -> Point:
        mrr = metric(finished[row.label, dataset], "test", "mrr")
        return row.label, mrr.mean, mrr.deviation or 0.0

    lines = {name: [[point(row, name) for row in experiment.rows]] for name in datasets}
    seeds = sorted({len(finished[row.label, name]) for row in experiment.rows for name in datasets})
    several = f"test MRR, mean and deviation of {' or '.join(map(str, seeds))} seeds"
    axes = experiment.varies, "test MRR" if seeds == [1] else several
    return Figure({experiment.title: lines}, axes)


def over_time(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Figure:
    """Plot the validation MRR by seconds of training, with one panel per data set and one line per run."""
    panels = {
        name: {
            row.label: [[(s, mrr, None) for s, mrr in run.history] for run in finished[row.label, name]]
            for row in experiment.rows
        }
        for name in datasets
    }
    return Figure(panels, ("seconds of training", "validation MRR"), log=True)


MEASURES: dict[str, Callable[[Place], Measured]] = {
    "statistics": statistics_of_data,
    "comparison": comparison,
    "entities": entities,
    "efficiency": efficiency,
    "rivals": rivals,
    "speed": speed,
}
FIGURES: dict[str, Callable[[Experiment, Sequence[str], Finished], Figure]] = {
    "by_row": by_row,
    "over_time": over_time,
}
