"""Build the tables of a target from its finished runs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench.reproduce import paper
from bench.reproduce.experiments import Experiment, Row
from bench.reproduce.runs import Outcome
from bench.reproduce.tables import (
    Cell,
    Line,
    Mean,
    Table,
    best_and_equal,
    mean_scores,
    metric,
    score_cells,
    score_record,
)
from bench.reproduce.timing import time_training
from lightcake_fast.data import load_dataset
from lightcake_fast.data.statistics import compute_statistics

Finished = Mapping[tuple[str, str], Sequence[Outcome]]  # by row and data set; one outcome per seed

FIGURES_NOTE = (
    "MRR / MR / Hits@3 of the test split, filtered; ties get the mean rank unless a row says otherwise."
)
PAPER_NOTE = "The paper ranks ties by relation id. The column 'ours is' compares the MRR."
RIVALS_NOTE = (
    "Filtered; ties get the mean rank. Means and deviations over seeds; seconds include validation. Bold: "
    "the highest test MRR of a data set. =: equal to it, that is less than two deviations (the larger of "
    "both) below it. Over no layers: gain in test MRR over the same score and terms without layers."
)
NEAR = 2e-3
SPEED_NOTE = (
    "Means over seeds. Seconds count training without validation. An MRR is reached at the end of an epoch. "
    "The goal is the lowest of the first row's best MRRs over seeds. All models have the same terms."
)
# Entity contexts, relation contexts and number of parameters by model.
# Source: LightCAKE, PAKDD 2021, section 4.
COMPLEXITY = {
    "distmult": ("no", "no", "N d + R d"),
    "rgcn": ("yes", "no", "N d + R d + L (d² + B d² + 2 R B)"),
    "lightcake": ("yes", "yes", "N d + 2 R d"),
}


def table_1(datasets: Sequence[str], data_dir: str | None) -> Table:
    """Build the statistics of the data sets, with the paper's mean context sizes."""
    rows, swapped = [], []
    records: list[dict[str, Cell]] = []
    for name in datasets:
        figures = compute_statistics(load_dataset(name, data_dir))
        theirs = paper.CONTEXT_SIZES.get(name)
        if name in paper.SWAPPED_SPLITS:
            swapped.append(name)
        rows.append(
            [
                name,
                f"{figures.entities:,}",
                f"{figures.relations:,}",
                *(f"{figures.triples[split]:,}" for split in ("train", "valid", "test")),
                f"{figures.mean_entity_context:.1f} / {figures.mean_relation_context:.1f}",
                f"{theirs[0]:.1f} / {theirs[1]:.1f}" if theirs else "",
                f"{figures.test_triples_with_unseen:,}",
            ]
        )
        records.append(
            {
                "data set": name,
                "entities": figures.entities,
                "relations": figures.relations,
                **figures.triples,
                "mean_entity_context": figures.mean_entity_context,
                "mean_relation_context": figures.mean_relation_context,
                "paper_entity_context": theirs[0] if theirs else None,
                "paper_relation_context": theirs[1] if theirs else None,
                "test_triples_with_unseen": figures.test_triples_with_unseen,
            }
        )
    head = ["data set", "entities", "relations", "train", "valid", "test"]
    head += ["mean contexts (entity / relation)", "paper", "test triples with an unseen entity"]
    notes = [f"The paper's table has valid and test swapped for {' and '.join(swapped)}."] if swapped else []
    return Table("Data sets (the paper's table 1)", head, rows, notes, records)


def comparison(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build the test results of each row on each data set, with the paper's results if it has them."""
    head = [experiment.varies, *(cell for name in datasets for cell in (name, "paper", "ours is"))]
    rows = []
    records: list[dict[str, Cell]] = []
    for row in experiment.rows:
        cells = [row.label]
        for name in datasets:
            theirs = paper.published(row.published, name) if row.published else None
            outcomes = finished[row.label, name]
            cells += score_cells(outcomes, theirs)
            about = {experiment.varies: row.label, "data set": name}
            records.append({**about, **score_record(outcomes, theirs)})
        rows.append(cells)
    kept = [n for n in range(len(head)) if n == 0 or any(row[n] for row in rows)]
    head, rows = [head[n] for n in kept], [[row[n] for n in kept] for row in rows]
    notes = [FIGURES_NOTE, PAPER_NOTE] if "ours is" in head else [FIGURES_NOTE]
    return Table(experiment.title, head, rows, notes, records)


def entities(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build the test results for entity prediction, with the published results of the scores alone."""
    head = [experiment.varies]
    for name in datasets:
        head += [name, "Hits@1 / @10", "published MRR"]
    rows = []
    records: list[dict[str, Cell]] = []
    for row in experiment.rows:
        cells = [row.label]
        for name in datasets:
            outcomes = finished[row.label, name]
            theirs = paper.published_entity_mrr(row.label, name)
            hits = {
                key: statistics.fmean(outcome.results["test"]["all"][key] for outcome in outcomes)
                for key in ("hits_at_1", "hits_at_10")
            }
            cells.append(score_cells(outcomes, None)[0])
            cells.append(f"{hits['hits_at_1']:.4f} / {hits['hits_at_10']:.4f}")
            cells.append("" if theirs is None else f"{theirs:.3f}")
            about = {experiment.varies: row.label, "data set": name}
            records.append({**about, **score_record(outcomes, None), **hits, "published_mrr": theirs})
        rows.append(cells)
    notes = [
        FIGURES_NOTE,
        "Tails and heads are ranked. The published MRRs are of scores without context, tuned by others.",
    ]
    return Table(experiment.title, head, rows, notes, records)


def with_curves(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build `comparison` with a figure: MRR by the varied property, with one curve per data set."""
    table = comparison(experiment, datasets, finished)
    curves = {name: _curve(experiment.rows, name, finished) for name in datasets}
    seeds = sorted({len(finished[row.label, name]) for row in experiment.rows for name in datasets})
    several = f"test MRR, mean and deviation of {' or '.join(map(str, seeds))} seeds"
    axes = experiment.varies, "test MRR" if seeds == [1] else several
    return replace(table, curves=curves, axes=axes)


def by_layers(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build `with_curves`, with a note on the paper."""
    table = with_curves(experiment, datasets, finished)
    note = "The paper shows these values only in a figure, so this table lacks the paper's numbers."
    return replace(table, notes=[*table.notes, note])


def efficiency(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build a table of each model's contexts, size, accuracy, speed and memory."""
    head = ["data set", "model", "entity contexts", "relation contexts", "size", "parameters", "MRR", "paper"]
    head += ["layer, ms", "training triples/s", "of R-GCN", "peak memory, MB"]
    rows = []
    records: list[dict[str, Cell]] = []
    for name in datasets:
        first = {row.label: finished[row.label, name][0] for row in experiment.rows}
        timings = {label: time_training(run.folder, run.data_dir) for label, run in first.items()}
        for row in experiment.rows:
            outcomes, timing = finished[row.label, name], timings[row.label]
            theirs = paper.published(row.published, name) if row.published else None
            peak = max((run.peak_bytes for run in outcomes if run.peak_bytes), default=None)
            parameters, mrr = outcomes[0].results["parameters"], mean_scores(outcomes)[0].mrr
            layer = timing.layer_seconds
            against = timings.get("R-GCN")
            rows.append(
                [
                    name,
                    row.label,
                    *COMPLEXITY[str(row.settings["model"])],
                    f"{parameters:,}",
                    f"{mrr:.4f}",
                    f"{theirs.mrr:.3f}" if theirs else "",
                    f"{layer * 1e3:.1f}" if layer else "",
                    f"{timing.triples_per_second:,.0f}",
                    f"{timing.triples_per_second / against.triples_per_second:.2f}" if against else "",
                    f"{peak / 1e6:,.0f}" if peak else "",
                ]
            )
            records.append(
                {
                    "data set": name,
                    "model": row.label,
                    "parameters": parameters,
                    "mrr": mrr,
                    "paper_mrr": theirs.mrr if theirs else None,
                    "layer_seconds": layer,
                    "triples_per_second": timing.triples_per_second,
                    "peak_bytes": peak,
                }
            )
    note = (
        "Sizes leave out the relation bias (R), the unknown-entity vectors (2 d), profile, links and paths, "
        "which every model can have, and LightCAKE's mixing. A relation has d / 2 numbers in RotatE and 2 d "
        "in TransH. Steps and layers are timed when the table is made, with the threads of this process: "
        "medians of 12. The time of a layer is the time to refine both tables, forward and backward, divided "
        "by the number of layers. Memory is the peak of the whole training process. A step without context "
        "only scores its pairs, so scores without layers train many more triples per second."
    )
    return Table(experiment.title, head, rows, [note], records)


def rivals(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build the validation and test results of each row on each data set.

    The table marks the best row and the rows equal to it, and shows the gain from layers.
    """
    head = ["data set", "model", "seeds", "valid MRR", "test MRR", "MR", "Hits@3", "over no layers"]
    head += ["parameters", "s"]
    rows = []
    records: list[dict[str, Cell]] = []
    for name in datasets:
        runs = {row.label: finished[row.label, name] for row in experiment.rows}
        test = {label: metric(outcomes, "test", "mrr") for label, outcomes in runs.items()}
        best, equal = best_and_equal(list(test.values()))
        for n, row in enumerate(experiment.rows):
            record, outcomes = _rival_record(runs[row.label]), runs[row.label]
            gain = test[row.label].mean - test[row.without].mean if row.without in test else None
            mrr = test[row.label].cell(4)
            rows.append(
                [
                    name,
                    row.label,
                    str(len(outcomes)),
                    metric(outcomes, "valid", "mrr").cell(4),
                    f"**{mrr}**" if n == best else f"{mrr} =" if n in equal else mrr,
                    metric(outcomes, "test", "mr").cell(3),
                    metric(outcomes, "test", "hits_at_3").cell(4),
                    "" if gain is None else f"{gain:+.4f}",
                    f"{record['parameters']:,}",
                    f"{record['seconds']:.0f}",
                ]
            )
            standing = "best" if n == best else "equal" if n in equal else "below"
            about: dict[str, Cell] = {"data set": name, "model": row.label, "seeds": len(outcomes)}
            records.append({**about, **record, "over_no_layers": gain, "standing": standing})
    return Table(experiment.title, head, rows, [RIVALS_NOTE], records)


def _rival_record(outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    record: dict[str, Cell] = {}
    for split in ("valid", "test"):
        for name in ("mrr", "mr", "hits_at_3"):
            mean, deviation = metric(outcomes, split, name)
            record |= {f"{split}_{name}": mean, f"{split}_{name}_deviation": deviation}
    record["parameters"] = outcomes[0].results["parameters"]
    return record | {"seconds": statistics.fmean(outcome.results["seconds"] for outcome in outcomes)}


def speed(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Build the seconds of training to the validation MRR that all runs of the first row reach.

    A second column gives the seconds to an MRR slightly below it.
    """
    first = experiment.rows[0].label
    head = ["data set", "model", "valid MRR", "s in total", f"s to {first}'s MRR", f"s to {NEAR:g} below it"]
    rows = []
    records: list[dict[str, Cell]] = []
    panels = {
        name: {row.label: [run.history for run in finished[row.label, name]] for row in experiment.rows}
        for name in datasets
    }
    for name, lines in panels.items():
        goal = min(_highest(line) for line in lines[first])
        for label, seeds in lines.items():
            reached = Mean.of([_highest(line) for line in seeds])
            in_all = statistics.fmean(line[-1][0] for line in seeds)
            whole, near = ([_seconds_to(line, mrr) for line in seeds] for mrr in (goal, goal - NEAR))
            rows.append([name, label, reached.cell(4), f"{in_all:.0f}", _in_cell(whole), _in_cell(near)])
            figures: dict[str, Cell] = {"valid_mrr": reached.mean, "seconds": in_all, "goal": goal}
            figures |= {"seconds_to_goal": _mean_of_all(whole), "seconds_to_near": _mean_of_all(near)}
            records.append({"data set": name, "model": label, **figures})
    axes = "seconds of training", "validation MRR"
    return Table(experiment.title, head, rows, [SPEED_NOTE], records, panels=panels, axes=axes)


def _highest(line: Line) -> float:
    return max(mrr for _, mrr in line)


def _seconds_to(line: Line, goal: float) -> float | None:
    """Return the time at which a run first reached an MRR, or None."""
    return next((seconds for seconds, mrr in line if mrr >= goal), None)


def _mean_of_all(times: Sequence[float | None]) -> float | None:
    """Return the mean over seeds, or None if one of them did not reach it."""
    there = [time for time in times if time is not None]
    return statistics.fmean(there) if len(there) == len(times) else None


def _in_cell(times: Sequence[float | None]) -> str:
    """Format the mean over the seeds that reached it, and their number if others did not."""
    there = [time for time in times if time is not None]
    if not there:
        return "never"
    return f"{statistics.fmean(there):.0f}" + (
        f" ({len(there)} of {len(times)})" if len(there) < len(times) else ""
    )


BUILDERS: dict[str, Callable[[Experiment, Sequence[str], Finished], Table]] = {
    "table2": comparison,
    "rivals": rivals,
    "ablation": with_curves,
    "layers": by_layers,
    "efficiency": efficiency,
    "speed": speed,
    "options": comparison,
    "entities": entities,
}


def _curve(rows: Sequence[Row], dataset: str, finished: Finished) -> list[tuple[str, float, float]]:
    scores = {row.label: mean_scores(finished[row.label, dataset]) for row in rows}
    return [(label, means.mrr, deviation or 0.0) for label, (means, deviation) in scores.items()]
