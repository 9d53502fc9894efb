"""The training loop: epochs, validation, early stopping, and the saves that let it go on after a stop."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError, memory_wanted
from lightcake_fast.graph import ContextGraph
from lightcake_fast.metrics import Evaluation, KnownRelations, NonFiniteScoresError, evaluate_relations
from lightcake_fast.training.captured import CapturedStep, wants_capture
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.model import build_model
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import Position, RunFolder
from lightcake_fast.training.runtime import epoch_order, mixed_seed, resolve_device
from lightcake_fast.training.state import check_tensors, restore_state, training_state
from lightcake_fast.training.step import TrainingStep

_MEMORY_FLAGS = ("dim", "layers", "batch_size")
SAVE_SECONDS = 45.0  # a save a minute is promised; the step or validation under way may come on top


def check(config: TrainingConfig, graph: KnowledgeGraph) -> None:
    """Find what only the machine and the data set can tell, before a run folder is made.

    Raises:
        InputError: The device is not there, cannot capture a step, or the model does not take the width.
    """
    wants_capture(config.cuda_graph, resolve_device(config.device))
    with torch.device("meta"):
        build_model(config, graph.num_entities, graph.num_relations)


def train(
    config: TrainingConfig, graph: KnowledgeGraph, run: RunFolder, reporter: Reporter, interrupt: Interrupt
) -> None:
    """Train from where the run folder stands to the test metrics.

    Args:
        config: The run's configuration, with what may differ on resume.
        graph: The data set.
        run: The open run folder.
        reporter: Shows the progress.
        interrupt: Asked between steps whether to save and leave.

    Raises:
        InputError: The checkpoint does not fit, or the training diverged.
        MemoryError: Memory ran out, the host's or the device's; the message names the flags that lower it.
        SystemExit: A signal came, and the run is saved.
    """
    try:
        _train(config, graph, run, reporter, interrupt)
    except (MemoryError, RuntimeError) as error:
        wanted = memory_wanted(error)
        if wanted is None:
            raise
        rows = graph.num_entities + 2 * graph.num_relations
        flags = ", ".join(f"--{n.replace('_', '-')} ({getattr(config, n)})" for n in _MEMORY_FLAGS)
        raise MemoryError(
            f"{wanted}; the embeddings with their gradients and Adam's averages alone take "
            f"{rows * config.dim * 16 / 2**30:.2f} GiB; less of {flags} takes less"
        ) from error


def _train(
    config: TrainingConfig, graph: KnowledgeGraph, run: RunFolder, reporter: Reporter, interrupt: Interrupt
) -> None:
    checkpoint = run.load_last(graph.fingerprint)
    if checkpoint is not None and checkpoint[1].finished(config):
        results = run.read_results()
        if results is not None:
            run.update(dataclasses.replace(run.config, dataset=config.dataset, data_dir=config.data_dir))
            reporter.already_finished(checkpoint[1])
            reporter.results(results, run.path)
            return
    run.update(config)
    trainer = Trainer(config, graph, run, reporter, interrupt)
    if checkpoint is None:
        run.write_id_maps(graph)
        run.read_metrics(epochs=0)
    else:
        trainer.restore(*checkpoint)
    reporter.results(trainer.fit(), run.path)


class Trainer:
    """A run in memory: the model, its step, and how far it is.

    Attributes:
        model: On the device.
        position: How far the run is.
    """

    def __init__(
        self,
        config: TrainingConfig,
        graph: KnowledgeGraph,
        run: RunFolder,
        reporter: Reporter,
        interrupt: Interrupt,
    ) -> None:
        self._config, self._graph, self._run = config, graph, run
        self._reporter, self._interrupt = reporter, interrupt
        self._device = resolve_device(config.device)
        captures = wants_capture(config.cuda_graph, self._device)
        self._generator = torch.Generator(self._device).manual_seed(config.seed)
        self.model = build_model(config, graph.num_entities, graph.num_relations, self._generator)
        triples = torch.from_numpy(graph.train).to(self._device)
        self._context = ContextGraph.from_triples(triples, graph.num_entities, graph.num_relations)
        self._seen = torch.from_numpy(graph.seen_entities).to(self._device)
        self._known = KnownRelations.of(graph)
        self._step = TrainingStep(self.model, self._context, triples, config, self._generator)
        self._advance: Callable[[Tensor], None] = self._step
        if captures:
            self._advance = CapturedStep(self._step, min(config.batch_size, len(triples)), self._generator)
        self._steps = math.ceil(len(triples) / config.batch_size)
        self._records: list[dict[str, Any]] = []
        self.position = Position()
        self._mark = self._saved = time.monotonic()

    def restore(self, tensors: dict[str, Tensor], position: Position, notes: dict[str, Any]) -> None:
        """Go back to where a checkpoint was saved (see `RunFolder.load_last`)."""
        restore_state(tensors, self.model, self._step.optimizer)
        if notes.get("device") == self._device.type:
            try:
                self._generator.set_state(tensors["generator"])
            except (RuntimeError, TypeError) as error:
                raise InputError(f"the checkpoint's random state is none: {error}") from error
        else:
            # the states of two kinds of device do not fit each other: new draws, the same in every resume
            self._generator.manual_seed(mixed_seed(self._config.seed, position.epoch, position.step))
        self._step.loss_sum.fill_(position.loss_sum)
        self._records = self._run.read_metrics(position.epoch)
        self.position = position
        if position.best_epoch == position.epoch and position.step == 0:
            # a kill may have come between the two saves of the epoch's end
            self._save_best()
        elif position.best_epoch:
            self._run.load_best(position.best_epoch, self._graph.fingerprint)
        self._mark = time.monotonic()

    def fit(self) -> dict[str, Any]:
        """Train to the end and write the results.

        Returns:
            The content of `results.json`.
        """
        self._run.drop_results()
        self._interrupt.defer()
        with self._reporter.training(self._config, self._graph, self._steps, self.position, self._run.path):
            while not self.position.finished(self._config):
                self._train_epoch()
                self._end_epoch()
        return self._test()

    def evaluate(self, split: str) -> Evaluation:
        """Rank the relations of a split, with the whole training graph as context.

        Raises:
            InputError: Scores are NaN or infinite.
        """
        self.model.eval()
        with torch.no_grad():
            refined = self.model.refine(self._context, backend=self._config.backend)
            try:
                return evaluate_relations(
                    lambda pairs: self.model.relation_scores(
                        refined, pairs.to(self._device), seen=self._seen
                    ),
                    self._graph.split(split),
                    self._known,
                    self._graph.seen_entities,
                    ties=self._config.ties,
                )
            except NonFiniteScoresError as error:
                raise InputError(
                    f"training diverged in epoch {self.position.epoch + 1}: {error}; try a smaller --lr "
                    f"(it is {self._config.lr:g})"
                ) from error

    def _train_epoch(self) -> None:
        position = self.position
        order = epoch_order(self._config.seed, position.epoch, len(self._graph.train)).to(self._device)
        self.model.train()
        self._step.start_epoch(position.epoch)
        for batch in torch.split(order, self._config.batch_size)[position.step :]:
            self._advance(batch)
            position.step += 1
            if self._interrupt.signal is not None:
                self._save_last()
                self._reporter.stopped(self._interrupt.signal, position, self._run.path)
                self._interrupt.leave()
            if time.monotonic() - self._saved >= SAVE_SECONDS:
                self._save_last()
            if self._reporter.due():
                self._measure()
                done = min(position.step * self._config.batch_size, len(order))
                self._reporter.step(position, done)

    def _end_epoch(self) -> None:
        position = self.position
        self._measure()
        seconds, loss = position.seconds, position.loss_sum / len(self._graph.train)
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
            "triples_per_second": len(self._graph.train) / seconds,
        }
        self._records.append(record)
        self._run.write_metrics(self._records)
        self._save_last()
        if improved:
            self._save_best()
        self._reporter.epoch(record, position)
        if self._interrupt.signal is not None:
            self._reporter.stopped(self._interrupt.signal, position, self._run.path)
            self._interrupt.leave()

    def _test(self) -> dict[str, Any]:
        position = self.position
        best = self._run.load_best(position.best_epoch, self._graph.fingerprint)
        check_tensors(best, self.model.state_dict())
        self.model.load_state_dict(best)
        results = {
            "dataset": self._graph.name,
            "model": self._config.title,
            "ties": self._config.ties,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "epochs": position.epoch,
            "best_epoch": position.best_epoch,
            "valid": self._records[position.best_epoch - 1]["valid"],
            "test": self.evaluate("test").to_dict(),
            "seconds": position.total_seconds,
        }
        self._run.write_results(results)
        return results

    def _measure(self) -> None:
        """Bring the position's loss and times up to date: this waits for the device."""
        self.position.loss_sum = self._step.loss_sum.item()
        now = time.monotonic()
        self.position.seconds += now - self._mark
        self.position.total_seconds += now - self._mark
        self._mark = now

    def _save_last(self) -> None:
        self._measure()
        state = training_state(self.model, self._step.optimizer, self._generator)
        self._run.save_last(state, self.position, self._graph.fingerprint, device=self._device.type)
        self._saved = self._mark = time.monotonic()

    def _save_best(self) -> None:
        self._run.save_best(self.model.state_dict(), self.position, self._graph.fingerprint)
