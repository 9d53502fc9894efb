"""From a target's finished runs to its tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lightcake_fast.data import load_dataset
from lightcake_fast.data.statistics import compute_statistics
from lightcake_fast.reproduce import paper
from lightcake_fast.reproduce.experiments import Experiment, Row
from lightcake_fast.reproduce.runs import Outcome
from lightcake_fast.reproduce.tables import Table, mean_scores, score_cells

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
    head = ["data set", "entities", "relations", "train", "valid", "test"]
    head += ["mean contexts (entity / relation)", "paper", "test triples with an unseen entity"]
    notes = [f"The paper's table has valid and test swapped for {' and '.join(swapped)}."] if swapped else []
    return Table("Data sets (the paper's table 1)", head, rows, notes)


def comparison(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """Test figures of each row on each data set, beside the paper's where it has them."""
    head = ["", *(cell for name in datasets for cell in (name, "paper", "ours is"))]
    rows = []
    for row in experiment.rows:
        cells = [row.label]
        for name in datasets:
            theirs = paper.published(row.published, name) if row.published else None
            cells += score_cells(finished[row.label, name], theirs)
        rows.append(cells)
    table = _without_empty_columns(Table(experiment.title, head, rows, [FIGURES_NOTE]))
    return replace(table, notes=[FIGURES_NOTE, PAPER_NOTE]) if "ours is" in table.head else table


def by_layers(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """The same with a figure: MRR by number of layers, a curve a data set."""
    table = _with_curves("layers", experiment, datasets, finished)
    note = "The paper shows these values in a figure only: no numbers of its stand here."
    return replace(table, notes=[*table.notes, note])


def by_context(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """The same with a figure: MRR by context, a curve a data set."""
    return _with_curves("context", experiment, datasets, finished)


def efficiency(experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """What each model uses and costs: contexts, size, parameters, accuracy, training speed, memory."""
    head = ["data set", "model", "entity contexts", "relation contexts", "size", "parameters", "MRR", "paper"]
    head += ["training triples/s", "of R-GCN", "peak memory, MB"]
    rows = []
    for name in datasets:
        speed = {row.label: _mean_speed(finished[row.label, name]) for row in experiment.rows}
        for row in experiment.rows:
            outcomes = finished[row.label, name]
            theirs = paper.published(row.label, name)
            peaks = [outcome.peak_bytes for outcome in outcomes if outcome.peak_bytes]
            rows.append(
                [
                    name,
                    row.label,
                    *COMPLEXITY[row.label],
                    f"{outcomes[0].results['parameters']:,}",
                    f"{mean_scores(outcomes)[0].mrr:.4f}",
                    f"{theirs.mrr:.3f}" if theirs else "",
                    f"{speed[row.label]:,.0f}",
                    f"{speed[row.label] / speed['R-GCN']:.2f}",
                    f"{max(peaks) / 1e6:,.0f}" if peaks else "",
                ]
            )
    note = (
        "Sizes leave out the relation bias (R) and the unknown-entity vectors (2 d), which all three have "
        "where the preset asks for them. Speed is the median epoch's, memory that of the whole process. A "
        "step without context scores its pairs and no more, so DistMult trains many more a second."
    )
    return Table(experiment.title, head, rows, [note])


BUILDERS: dict[str, Callable[[Experiment, Sequence[str], Finished], Table]] = {
    "table2": comparison,
    "ablation": by_context,
    "layers": by_layers,
    "efficiency": efficiency,
    "options": comparison,
}


def _with_curves(what: str, experiment: Experiment, datasets: Sequence[str], finished: Finished) -> Table:
    """`comparison`, its rows named by `what` they vary, with a curve of the MRR for each data set."""
    table = comparison(experiment, datasets, finished)
    curves = {name: _curve(experiment.rows, name, finished) for name in datasets}
    return replace(table, head=[what, *table.head[1:]], curves=curves, axes=(what, "test MRR"))


def _curve(rows: Sequence[Row], dataset: str, finished: Finished) -> list[tuple[str, float]]:
    return [(row.label, mean_scores(finished[row.label, dataset])[0].mrr) for row in rows]


def _mean_speed(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.triples_per_second for outcome in outcomes) / len(outcomes)


def _without_empty_columns(table: Table) -> Table:
    """Columns of the paper in which it has nothing are left out."""
    kept = [n for n in range(len(table.head)) if n == 0 or any(row[n] for row in table.rows)]
    rows = [[row[n] for n in kept] for row in table.rows]
    return Table(table.title, [table.head[n] for n in kept], rows, table.notes)
