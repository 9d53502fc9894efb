"""The training loop: epochs, validation, early stopping, and the saves that let it go on after a stop."""

import copy
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import DivergedError, InputError, memory_wanted
from lightcake_fast.kernels.compiling import seconds_compiling
from lightcake_fast.metrics import Evaluation, NonFiniteScoresError
from lightcake_fast.process import release_memory
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.experiment import Experiment, check
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.parts import ROWS
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import Position, RunFolder
from lightcake_fast.training.runtime import mixed_seed, own_numerics
from lightcake_fast.training.sharded import ShardedExperiment
from lightcake_fast.training.state import check_tensors, restore_state, training_state

Callback = Callable[[dict[str, Any]], object]

_MEMORY_FLAGS = ("dim", "layers", "batch_size")
SAVE_SECONDS = 45.0  # a save a minute is promised; the step or validation under way may come on top
SAVE_SHARE = 0.1  # of the time that saves take, at most: big models are saved less often


def train_to_end(
    config: TrainingConfig,
    data: KnowledgeGraph | ShardData,
    run: RunFolder,
    reporter: Reporter,
    interrupt: Interrupt,
    callbacks: Sequence[Callback] = (),
    *,
    test: bool = True,
) -> float:
    """Train from where the run folder stands to the test metrics.

    Args:
        config: The run's configuration, with what may differ on resume.
        data: The data set.
        run: The open run folder.
        reporter: Shows the progress.
        interrupt: Asked between steps whether to save and leave.
        callbacks: Called with each epoch's record, once it is saved.
        test: False leaves the test split alone: going on with the run later looks at it.

    Returns:
        The best validation MRR.

    Raises:
        InputError: The checkpoint does not fit, or the training diverged.
        MemoryError: Memory ran out, the host's or the device's; the message names the flags that lower it.
        SystemExit: A signal came, and the run is saved.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad(), own_numerics():  # whatever the caller set
            return _train(config, data, run, reporter, interrupt, callbacks, test)
    except (MemoryError, RuntimeError) as error:
        wanted = memory_wanted(error)
        if wanted is None:
            raise
        rows = data.num_entities + 2 * data.num_relations
        flags = ", ".join(f"--{n.replace('_', '-')} ({getattr(config, n)})" for n in _MEMORY_FLAGS)
        raise MemoryError(
            f"{wanted}; the embeddings with their gradients and Adam's averages alone take "
            f"{rows * config.dim * 16 / 2**30:.2f} GiB; less of {flags} takes less"
        ) from error
    finally:
        release_memory()


def _train(
    config: TrainingConfig,
    data: KnowledgeGraph | ShardData,
    run: RunFolder,
    reporter: Reporter,
    interrupt: Interrupt,
    callbacks: Sequence[Callback],
    test: bool,
) -> float:
    checkpoint = run.load_last(data.fingerprint, _rows(data))
    if checkpoint is not None and checkpoint[1].finished(config):
        results = run.read_results()
        if results is not None:
            run.update(dataclasses.replace(run.config, dataset=config.dataset, data_dir=config.data_dir))
            reporter.already_finished(checkpoint[1], config)
            reporter.results(results, run.shown)
            return checkpoint[1].best_mrr
    check(config, data)  # of a run that goes on with other flags: what is refused leaves it as it is
    run.claim(data)
    trainer = Trainer(config, data, run, reporter, interrupt, callbacks)
    if checkpoint is None:
        run.write_id_maps(data)
        run.read_metrics(epochs=0)
    else:
        trainer.restore(*checkpoint)
    run.update(config)
    trainer.fit()
    if test:
        reporter.results(trainer.test(), run.shown)
    return trainer.position.best_mrr


def _rows(data: KnowledgeGraph | ShardData) -> Ids | None:
    """The entities whose rows this process has; None for all."""
    return data.layout.rows if isinstance(data, ShardData) else None


class Trainer:
    """A run in memory: the experiment, and how far it is.

    Attributes:
        model: On the device.
        position: How far the run is.
    """

    def __init__(
        self,
        config: TrainingConfig,
        data: KnowledgeGraph | ShardData,
        run: RunFolder,
        reporter: Reporter,
        interrupt: Interrupt,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._config, self._data, self._run = config, data, run
        self._reporter, self._interrupt, self._callbacks = reporter, interrupt, callbacks
        self._world, self._rows = run.world, _rows(data)
        self._experiment: Experiment | ShardedExperiment = (
            ShardedExperiment(config, data, run.world)
            if isinstance(data, ShardData)
            else Experiment(config, data)
        )
        self.model, self._step = self._experiment.model, self._experiment.step
        self._steps = math.ceil(data.num_train / config.batch_size)
        self._records: list[dict[str, Any]] = []
        self.position = Position()
        self._compiled_before = seconds_compiling()
        self._awaited = 0.0  # the most seconds since then for which a process has waited for its compiler
        self._mark = self._working_seconds()
        self._next_save = time.monotonic() + SAVE_SECONDS

    def restore(self, tensors: dict[str, Tensor], position: Position, notes: dict[str, Any]) -> None:
        """Go back to where a checkpoint was saved (see `RunFolder.load_last`)."""
        restore_state(tensors, self.model, self._step)
        if notes.get("device") == self._experiment.randomness:
            try:
                self._experiment.generator.set_state(tensors["generator"])
            except (RuntimeError, TypeError) as error:
                raise InputError(f"the checkpoint's random state is none: {error}") from error
        else:
            # the states of two kinds do not fit each other: new draws, the same in every resume
            self._experiment.generator.manual_seed(
                mixed_seed(self._config.seed, position.epoch, position.step)
            )
        self._step.loss_sum.fill_(position.loss_sum if self._world.first else 0)
        self._records = self._run.read_metrics(position.epoch)
        self.position = position
        if position.epoch and position.best_epoch == position.epoch and position.step == 0:
            # a kill may have come between the two saves of the epoch's end
            self._save_best()
        elif position.best_epoch:
            self._run.load_best(position.best_epoch, self._data.fingerprint, self._rows)
        self._mark = self._working_seconds()

    def fit(self) -> None:
        """Train to the end."""
        self._run.drop_results()
        self._interrupt.defer()
        try:
            with self._reporter.training(
                self._config, self._data, self._steps, self.position, self._run.shown
            ):
                while not self.position.finished(self._config):
                    self._train_epoch()
                    self._end_epoch()
        except BrokenPipeError:  # whoever read the output has gone
            if self._world.ranks == 1:  # of several, the others know nothing of it
                self._save_last()
            raise

    def test(self) -> dict[str, Any]:
        """Rank the test split with the weights of the best epoch, and write the results.

        Returns:
            The content of `results.json`.
        """
        position = self.position
        best = self._run.load_best(position.best_epoch, self._data.fingerprint, self._rows)
        check_tensors(best, self.model.state_dict())
        self.model.load_state_dict(best)
        results = {
            "dataset": self._data.name,
            "model": self._config.title,
            "task": self._config.task,
            "ties": self._config.ties,
            "parameters": self._experiment.parameters,
            "epochs": position.epoch,
            "best_epoch": position.best_epoch,
            "valid": self._records[position.best_epoch - 1]["valid"],
            "test": self.evaluate("test").to_dict(),
            "seconds": position.total_seconds,
        }
        self._run.write_results(results)
        self._world.agree(0)  # all read them
        return results

    def evaluate(self, split: str) -> Evaluation:
        """Rank the relations of a split (see `Experiment.ranks`).

        Raises:
            DivergedError: Scores are NaN or infinite.
        """
        try:
            return self._experiment.evaluate(split)
        except NonFiniteScoresError as error:
            raise DivergedError(
                f"training diverged in epoch {self.position.epoch + 1}: {error}; try a smaller --lr "
                f"(it is {self._config.lr:g})"
            ) from error

    def _train_epoch(self) -> None:
        position = self.position
        for batch in self._experiment.epoch(position.epoch)[position.step :]:
            self._experiment.advance(batch)
            position.step += 1
            due = time.monotonic() >= self._next_save, self._reporter.due()
            save, show = self._agreed(*due)
            if self._interrupt.signal is not None:
                self._save_last()
                self._reporter.stopped(self._interrupt.signal, position, self._run.path)
                self._interrupt.leave()
            if save:
                self._save_last()
            if show:
                self._measure()
                done = min(position.step * self._config.batch_size, self._data.num_train)
                self._reporter.step(position, done)

    def _agreed(self, *wishes: bool) -> list[bool]:
        """What any process wishes, and a signal that came to any: from here on it came to all."""
        known = int(self._interrupt.signal or 0), int(1e6 * (seconds_compiling() - self._compiled_before))
        number, compiled, *found = self._world.agree(*known, *map(int, wishes))
        self._awaited = 1e-6 * compiled
        if number:
            self._interrupt.signal = signal.Signals(number)
        return [bool(wish) for wish in found]

    def _end_epoch(self) -> None:
        position = self.position
        self._measure()
        seconds, loss = position.seconds, position.loss_sum / self._data.num_train
        with self._step.average.applied():
            valid = self.evaluate("valid")
        self._measure()
        position.epoch += 1
        position.step, position.loss_sum, position.seconds = 0, 0.0, 0.0
        self._step.loss_sum.zero_()
        mrr = valid.all.mrr
        assert mrr is not None, "no reader lets an empty split through"
        improved = mrr > position.best_mrr
        if improved:
            position.best_mrr, position.best_epoch = mrr, position.epoch
        record = {
            "epoch": position.epoch,
            "loss": loss,
            "valid": valid.to_dict(),
            "seconds": seconds,
            "triples_per_second": self._data.num_train / seconds,
        }
        self._records.append(record)
        self._run.write_metrics(self._records)
        self._save_last()
        if improved:
            self._save_best()
        self._reporter.epoch(record, position)
        for callback in self._callbacks:
            callback(copy.deepcopy(record))
        self._agreed()
        self._mark = self._working_seconds()
        if self._interrupt.signal is not None:
            self._reporter.stopped(self._interrupt.signal, position, self._run.path)
            self._interrupt.leave()

    def _measure(self) -> None:
        """Bring the position's loss and times up to date: this waits for the device."""
        self.position.loss_sum = self._experiment.loss_sum()
        now = self._working_seconds()
        self.position.seconds += now - self._mark
        self.position.total_seconds += now - self._mark
        self._mark = now

    def _save_last(self) -> None:
        self._measure()
        state = training_state(self.model, self._step, self._experiment.generator)
        state |= self._named_rows()
        self._run.save_last(state, self.position, self._data.fingerprint, device=self._experiment.randomness)
        before, self._mark = self._mark, self._working_seconds()
        self._next_save = time.monotonic() + max(SAVE_SECONDS, (self._mark - before) / SAVE_SHARE)

    def _save_best(self) -> None:
        with self._step.average.applied():
            weights = {**self.model.state_dict(), **self._named_rows()}
            self._run.save_best(weights, self.position, self._data.fingerprint)

    def _named_rows(self) -> dict[str, Tensor]:
        """Of a part of a checkpoint: whose rows it has."""
        return {} if self._rows is None else {ROWS: torch.from_numpy(self._rows)}

    def _working_seconds(self) -> float:
        """A clock that stands still while any process compiles, which is done once and is not speed."""
        return time.monotonic() - max(self._awaited, seconds_compiling() - self._compiled_before)
