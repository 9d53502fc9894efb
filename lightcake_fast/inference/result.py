"""Results of a training: metrics, history of epochs, and the trained model."""

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.files import parse_json, replace_text
from lightcake_fast.inference.figure import new_figure
from lightcake_fast.inference.tabular import frame
from lightcake_fast.inference.trained import TrainedModel, opened
from lightcake_fast.metrics import Evaluation, RankMetrics
from lightcake_fast.trackers import flat
from lightcake_fast.training.run_folder import METRICS, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class History(list[dict[str, Any]]):
    """List of the records of all epochs, as in `metrics.jsonl`."""

    @classmethod
    def read(cls, run: str | Path) -> "History":
        """Read the epochs of a run folder. The training may still run.

        Raises:
            InputError: The folder is not a run folder, or its file is damaged.
        """
        file = RunFolder.open(Path(run).expanduser()).path / METRICS
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            return cls(parse_json(line) for line in lines)
        except ValueError as error:
            raise InputError(
                f"{file}: expected JSON lines, got a damaged file ({error}): restore the file"
            ) from error

    def to_pandas(self) -> "DataFrame":
        """One row per epoch: epoch, loss, valid_all_mrr and so on, seconds, triples_per_second."""
        rows = self._rows()
        return frame(rows[0] if rows else (), (row.values() for row in rows))

    def to_csv(self, path: str | Path) -> None:
        """Write the rows of `to_pandas` as comma-separated values; a missing value is an empty cell."""
        text = io.StringIO()
        rows = self._rows()
        writer = csv.DictWriter(text, rows[0] if rows else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_text(Path(path).expanduser(), text.getvalue())

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(flat(record, "_")) for record in self]


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Result of a training.

    Attributes:
        data: The data set.
        summary: Content of `results.json`: metrics, name of the data set, model, number of parameters, number
            of epochs, best epoch and time.
        history: The records of all epochs.
    """

    data: KnowledgeGraph
    summary: dict[str, Any]
    history: History
    _folder: RunFolder

    @classmethod
    def of(cls, folder: RunFolder, data: KnowledgeGraph) -> "TrainingResult":
        """Read a finished run.

        Raises:
            InputError: The run is not finished, or damaged.
        """
        summary = folder.read_results()
        if summary is None:
            raise InputError(
                f"{folder.path}: expected a finished run, got an unfinished one: continue it with --resume"
            )
        return cls(data, summary, History(folder.read_metrics(summary["epochs"])), folder)

    def __repr__(self) -> str:
        return (
            f"TrainingResult({self.summary['model']} on {self.summary['dataset']}: test MRR "
            f"{self.metrics.all.mrr:.4f}, epoch {self.summary['best_epoch']} of {self.summary['epochs']})"
        )

    @property
    def run(self) -> Path | None:
        """The run folder; None if the run was not kept."""
        return self._folder.shown

    @property
    def metrics(self) -> Evaluation:
        """Metrics of the test split, with the weights of the best epoch."""
        test = self.summary["test"]
        return Evaluation(all=RankMetrics(**test["all"]), seen=RankMetrics(**test["seen"]))

    @cached_property
    def model(self) -> TrainedModel:
        """The trained model, with the weights of the best epoch."""
        return opened(self._folder, self._folder.config, self.data)

    def plot(self) -> "Figure":
        """Plot loss and validation MRR by epoch. A notebook shows the figure; `.savefig(path)` writes it.

        Raises:
            InputError: matplotlib is missing.
        """
        figure = new_figure(8, 3.2)
        curves = {
            "training loss": [record["loss"] for record in self.history],
            "validation MRR": [record["valid"]["all"]["mrr"] for record in self.history],
        }
        for axes, (title, values) in zip(figure.subplots(1, 2), curves.items(), strict=True):
            axes.plot([record["epoch"] for record in self.history], values, marker="o")
            axes.axvline(self.summary["best_epoch"], color="gray", linestyle=":", label="best epoch")
            axes.set(title=title, xlabel="epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
        axes.legend()
        return figure
