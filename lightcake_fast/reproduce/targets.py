"""From a target's finished runs to its tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lightcake_fast.data import load_dataset
from lightcake_fast.data.statistics import compute_statistics
from lightcake_fast.reproduce import paper
from lightcake_fast.reproduce.experiments import Experiment, Row
from lightcake_fast.reproduce.runs import Outcome
from lightcake_fast.reproduce.tables import Cell, Table, mean_scores, score_cells, score_record

Finished = Mapping[tuple[str, str], Sequence[Outcome]]  # by row and data set; an outcome a seed

FIGURES_NOTE = (
    "MRR / MR / Hits@3 of the test split, filtered, ties at their mean rank unless the row says otherwise."
)
PAPER_NOTE = "The paper's figures were made with ties ranked by relation id. What ours is compares the MRR."
# Entity contexts, relation contexts, numbers kept. Source: LightCAKE, PAKDD 2021, section 4.
COMPLEXITY = {
    "DistMult": ("no", "no", "N d + R d"),
    "R-GCN": ("yes", "no", "N d + R d + L (d² + B d² + 2 R B)"),
    "LightCAKE-DistMult": ("yes", "yes", "N d + 2 R d"),
}


def table_1(datasets: Sequence[str], data_dir: str | None) -> Table:
    """Statistics of the data sets beside the paper's mean context sizes."""
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
    """Test figures of each row on each data set, beside the paper's where it has them."""
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
    """Test figures of each row where entities are ranked, beside those published for the scores alone."""
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
        "Tails and heads are ranked; published are scores without context, tuned by others.",
    ]
    return Table(experiment.title, head, rows, notes, records)


def with_curves(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """`comparison` with a figure: MRR by what the rows vary, a curve a data set."""
    table = comparison(experiment, datasets, finished)
    curves = {name: _curve(experiment.rows, name, finished) for name in datasets}
    seeds = table.records[0]["seeds"]
    axes = experiment.varies, "test MRR" if seeds == 1 else f"test MRR, mean and deviation of {seeds} seeds"
    return replace(table, curves=curves, axes=axes)


def by_layers(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """`with_curves`, with a note on the paper."""
    table = with_curves(experiment, datasets, finished)
    note = "The paper shows these values in a figure only: no numbers of its stand here."
    return replace(table, notes=[*table.notes, note])


def efficiency(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """What each model uses and costs: contexts, size, parameters, accuracy, training speed, memory."""
    head = ["data set", "model", "entity contexts", "relation contexts", "size", "parameters", "MRR", "paper"]
    head += ["training triples/s", "of R-GCN", "peak memory, MB"]
    rows = []
    records: list[dict[str, Cell]] = []
    for name in datasets:
        speed = {row.label: _mean_speed(finished[row.label, name]) for row in experiment.rows}
        for row in experiment.rows:
            outcomes = finished[row.label, name]
            theirs = paper.published(row.label, name)
            peak = max((run.peak_bytes for run in outcomes if run.peak_bytes), default=None)
            parameters, mrr = outcomes[0].results["parameters"], mean_scores(outcomes)[0].mrr
            rows.append(
                [
                    name,
                    row.label,
                    *COMPLEXITY[row.label],
                    f"{parameters:,}",
                    f"{mrr:.4f}",
                    f"{theirs.mrr:.3f}" if theirs else "",
                    f"{speed[row.label]:,.0f}",
                    f"{speed[row.label] / speed['R-GCN']:.2f}",
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
                    "triples_per_second": speed[row.label],
                    "peak_bytes": peak,
                }
            )
    note = (
        "Sizes leave out the relation bias (R) and the unknown-entity vectors (2 d), which all three have "
        "where the preset asks for them, and LightCAKE's profile, links and mixing. Speed is the median "
        "epoch's, memory that of the whole process. A step without context scores its pairs and no more, so "
        "DistMult trains many more a second."
    )
    return Table(experiment.title, head, rows, [note], records)


BUILDERS: dict[str, Callable[[Experiment, Sequence[str], Finished], Table]] = {
    "table2": comparison,
    "ablation": with_curves,
    "layers": by_layers,
    "efficiency": efficiency,
    "options": comparison,
    "entities": entities,
}


def _curve(rows: Sequence[Row], dataset: str, finished: Finished) -> list[tuple[str, float, float]]:
    scores = {row.label: mean_scores(finished[row.label, dataset]) for row in rows}
    return [(label, means.mrr, deviation or 0.0) for label, (means, deviation) in scores.items()]


def _mean_speed(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.triples_per_second for outcome in outcomes) / len(outcomes)
