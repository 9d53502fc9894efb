"""Display of a run: a live bar on a terminal, else one line per epoch, and the final table."""

import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import counted
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.terminal import Console, Table
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.presets import preset_title
from lightcake_fast.training.run_folder import Position

REFRESH_SECONDS = 0.5
METRICS = {"MRR": "mrr", "MR": "mr", "Hits@1": "hits_at_1", "Hits@3": "hits_at_3", "Hits@10": "hits_at_10"}


class Reporter:
    """Display of one run.

    Args:
        quiet: Show only the test metrics.
        console: Output. None for stdout.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console()
        self._quiet = quiet
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._shown = 0.0
        self._epochs = self._steps = 0
        self._first: float | None = None  # end of the first step: compilation is over
        self._since = 0  # number of steps after the first

    @contextmanager
    def training(
        self,
        config: TrainingConfig,
        data: KnowledgeGraph | ShardData,
        steps: int,
        position: Position,
        folder: Path | None,
    ) -> Iterator[None]:
        """Show the training within a `with` block: `steps` steps per epoch, starting at `position`."""
        self._epochs, self._steps = config.epochs, steps
        self._say(
            f"{data.name}: {counted(data.num_entities, 'entity')}, "
            f"{counted(data.num_relations, 'relation')}, {counted(data.num_train, 'training triple')}"
        )
        self._say(
            f"{config.title}, task {config.task}, at most {counted(config.epochs, 'epoch')}, "
            f"{preset_title(config)}"
        )
        self._say(hyperparameters(config))
        if position.epoch or position.step:
            self._say(f"resuming in {folder} after epoch {position.epoch}, step {position.step}")
        elif folder is not None:
            self._say(f"run folder: {folder}")
        if self._quiet or not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),  # the space that the other columns leave
            TextColumn("{task.fields[figures]}", markup=False),
        )
        with Progress(*columns, console=self._console, transient=True, expand=True) as self._progress:
            self._task = self._progress.add_task("", total=config.epochs * steps, figures="")
            self._advance(position, "")
            yield
        self._progress = None

    def due(self) -> bool:
        """Whether the display needs new figures, at most every half second. Call it after each step."""
        if self._first is None:
            self._first = time.monotonic()
        else:
            self._since += 1
        return self._progress is not None and time.monotonic() - self._shown >= REFRESH_SECONDS

    def step(self, position: Position, triples: int) -> None:
        """Show the figures of the current epoch after `triples` triples."""
        figures = f"loss {position.loss_sum / triples:.4f}"
        if position.best_epoch:
            figures += f"  best MRR {position.best_mrr:.4f}"
        self._advance(position, f"{figures}  {triples / position.seconds:,.0f} triples/s")

    def epoch(self, record: Mapping[str, Any], position: Position) -> None:
        """Show the metrics of a finished epoch."""
        mrr = record["valid"]["all"]["mrr"]
        best = " (best)" if position.best_epoch == position.epoch else ""
        self._say(
            f"epoch {position.epoch:>{len(str(self._epochs))}}/{self._epochs}  loss {record['loss']:.4f}  "
            f"MRR {mrr:.4f}{best}  {record['triples_per_second']:,.0f} triples/s{self._left(position)}"
        )
        self._advance(position, f"MRR {mrr:.4f}  best MRR {position.best_mrr:.4f}")

    def stopped(self, number: signal.Signals, position: Position, folder: Path) -> None:
        """Show that a signal stopped the run, and how to resume it."""
        self._say(
            f"{number.name}: saved after epoch {position.epoch}, step {position.step}; "
            f"continue with --resume {folder}"
        )

    def already_finished(self, position: Position, config: TrainingConfig) -> None:
        """Show that the run is already finished."""
        ended = [f"--{name} than {getattr(config, name)}" for name in position.limits(config)]
        self._say(
            f"this run is finished after {counted(position.epoch, 'epoch')}: to continue it, use more "
            f"{' and more '.join(ended)}"
        )

    def results(self, results: Mapping[str, Any], folder: Path | None) -> None:
        """Show the test metrics and the run folder."""
        if self._quiet:
            for name, metrics in _columns(results["test"]).items():
                figures = "  ".join(
                    f"{title} {format_figure(metrics[key])}" for title, key in METRICS.items()
                )
                self._console.print(f"test {name} ({metrics['count']:,}): {figures}", soft_wrap=True)
            return
        title = f"{results['dataset']}, {results['model']}: test metrics of epoch {results['best_epoch']}"
        self._console.print_table(title, metrics_table(results["test"]))
        self._say(
            f"filtered {results['task']} prediction, {results['ties']} ties; "
            f"{results['parameters']:,} parameters, {counted(results['epochs'], 'epoch')}, "
            f"{results['seconds']:.0f} s"
        )
        if folder is None:
            return
        if results["best_epoch"] == results["epochs"]:
            more = 2 * results["epochs"]
            self._say(f"the last epoch is the best: more epochs may help, --resume {folder} --epochs {more}")
        self._say(f"run folder: {folder}")

    def seeds(self, several: Sequence[Mapping[str, Any]]) -> None:
        """Show mean and standard deviation of the test metrics of several runs."""
        columns: dict[str, list[Mapping[str, Any]]] = {}
        for results in several:
            for name, metrics in _columns(results["test"]).items():
                columns.setdefault(name, []).append(metrics)
        table = Table("", *columns)
        for label, key in METRICS.items():
            table.add_row(label, *(_spread([run[key] for run in runs]) for runs in columns.values()))
        title = f"{several[0]['dataset']}, {several[0]['model']}: mean and deviation of {len(several)} seeds"
        self._console.print_table(title, table)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, soft_wrap=True)

    def _left(self, position: Position) -> str:
        """Estimate the longest remaining time, from the pace since the first step of this process."""
        if self._first is None or not self._since:
            return ""
        pace = (time.monotonic() - self._first) / self._since
        seconds = pace * (self._epochs * self._steps - position.epoch * self._steps - position.step)
        for unit, length in (("h", 3600), ("min", 60)):
            if seconds >= 1.5 * length:
                return f"  {seconds / length:.0f} {unit} left"
        return f"  {seconds:.0f} s left"

    def _advance(self, position: Position, figures: str) -> None:
        if self._progress is None:
            return
        self._shown = time.monotonic()
        epoch = min(position.epoch + 1, self._epochs)
        self._progress.update(
            self._task,
            completed=position.epoch * self._steps + position.step,
            description=f"epoch {epoch}/{self._epochs}",
            figures=figures + self._left(position),
            refresh=True,
        )


def hyperparameters(config: TrainingConfig) -> str:
    """List the most important hyperparameters in one line, with N3 and negatives for entity prediction."""
    values = [
        f"layers {config.layers}",
        f"width {config.dim}",
        f"batch size {config.batch_size:,}",
        f"learning rate {config.lr:g}" + f" (decay {config.lr_decay:g} per epoch)" * bool(config.lr_decay),
    ]
    if config.task == "entity":
        values += [f"N3 {config.n3:g}", f"negatives {config.negatives or 'all entities'}"]
    return ", ".join(values)


def metrics_table(evaluation: Mapping[str, Any]) -> Table:
    """Make a table of `Evaluation.to_dict`: all triples and, where they differ, triples of seen entities."""
    columns = _columns(evaluation)
    table = Table()
    table.add_names("", 7)
    for name, metrics in columns.items():
        table.add_figures(f"{name} ({metrics['count']:,})", 10)
    for label, key in METRICS.items():
        table.add_row(label, *(format_figure(metrics[key]) for metrics in columns.values()))
    return table


def _spread(values: Sequence[float | None]) -> str:
    """Format mean and standard deviation, or a dash without values."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return format_figure(None)
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{format_figure(statistics.fmean(numbers))} ± {format_figure(deviation)}"


def format_figure(value: float | None) -> str:
    """Format a mean with four decimals, or a dash without values."""
    return "-" if value is None else f"{value:.4f}"


def _columns(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the metrics of all triples and, where they differ, of the triples of seen entities."""
    every, seen = evaluation["all"], evaluation["seen"]
    return {"all": every} if seen == every else {"all": every, "seen only": seen}
