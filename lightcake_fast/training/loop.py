"""Training loop: epochs, validation, early stopping, and saves for a later resume."""

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
SAVE_SECONDS = 45.0  # the documents promise one save per minute, plus the current step or validation
SAVE_SHARE = 0.1  # largest share of the time for saves: large models are saved less often


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
    """Train from the state of the run folder to the test metrics.

    Args:
        config: Configuration of the run, with the changes of a resume.
        data: Data set.
        run: Open run folder.
        reporter: Display of the progress.
        interrupt: Signals, checked between steps: save and exit.
        callbacks: Functions that get the record of each epoch after it is saved.
        test: False skips the test split. A later resume of the run evaluates it.

    Returns:
        The best validation MRR.

    Raises:
        InputError: The checkpoint does not fit, or the training diverged.
        MemoryError: The host or the device is out of memory. The message names the flags that reduce the
            need.
        SystemExit: A signal was received, and the run is saved.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad(), own_numerics():  # not the caller's
            return _train(config, data, run, reporter, interrupt, callbacks, test)
    except (MemoryError, RuntimeError) as error:
        wanted = memory_wanted(error)
        if wanted is None:
            raise
        rows = data.num_entities + 2 * data.num_relations
        flags = ", ".join(f"--{n.replace('_', '-')} ({getattr(config, n)})" for n in _MEMORY_FLAGS)
        raise MemoryError(
            f"{wanted}; the embeddings with gradients and Adam's averages take "
            f"{rows * config.dim * 16 / 2**30:.2f} GiB: reduce {flags}"
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
    check(config, data)  # before any change: an error in new flags must leave the run as it is
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
    """The entities with rows in this process, None for all."""
    return data.layout.rows if isinstance(data, ShardData) else None


class Trainer:
    """A run in memory: the experiment and its position.

    Attributes:
        model: Model on its device.
        position: Progress of the run.
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
        self._awaited = 0.0  # longest wait of a process for its compiler, in seconds since then
        self._mark = self._working_seconds()
        self._next_save = time.monotonic() + SAVE_SECONDS

    def restore(self, tensors: dict[str, Tensor], position: Position, notes: dict[str, Any]) -> None:
        """Restore the state of a checkpoint (see `RunFolder.load_last`)."""
        restore_state(tensors, self.model, self._step)
        if notes.get("device") == self._experiment.randomness:
            try:
                self._experiment.generator.set_state(tensors["generator"])
            except (RuntimeError, TypeError) as error:
                raise InputError(f"checkpoint: expected a random state, got another one: {error}") from error
        else:
            # the random states of two kinds of device are not compatible: a new seed, the same at every
            # resume
            self._experiment.generator.manual_seed(
                mixed_seed(self._config.seed, position.epoch, position.step)
            )
        self._step.loss_sum.fill_(position.loss_sum if self._world.first else 0)
        self._records = self._run.read_metrics(position.epoch)
        self.position = position
        if position.epoch and position.best_epoch == position.epoch and position.step == 0:
            # a kill may have come between the two saves at the end of the epoch
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
        except BrokenPipeError:  # the reader of the output has gone
            if self._world.ranks == 1:  # with several processes, the others do not know
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
        self._world.agree(0)  # every process has read the weights
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
                f"training diverged in epoch {self.position.epoch + 1}: {error}: try a smaller --lr "
                f"(now {self._config.lr:g})"
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
        """Combine the wishes and the signals of all processes. A signal to one process reaches all."""
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
        assert mrr is not None, "empty splits are rejected before training"
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
        """Update the loss and the times of the position. This waits for the device."""
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
        """The row numbers that a part of a checkpoint stores."""
        return {} if self._rows is None else {ROWS: torch.from_numpy(self._rows)}

    def _working_seconds(self) -> float:
        """Monotonic time without compilation in any process, because compilation happens only once."""
        return time.monotonic() - max(self._awaited, seconds_compiling() - self._compiled_before)
