"""Model, graph, training step and evaluation on a data set, without files."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from lightcake_fast.backends import check_fused, runnable
from lightcake_fast.data import SPLITS, KnowledgeGraph, load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.metrics import (
    Evaluation,
    KnownEntities,
    KnownRelations,
    entity_ranks,
    summarise_ranks,
    triple_ranks,
)
from lightcake_fast.models import MODELS, SHARED_ARGUMENTS, RelationModel, takers
from lightcake_fast.models.terms import TERMS
from lightcake_fast.models.terms.term import Evidence, chosen
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.training.captured import CapturedStep, wants_capture
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import epoch_order, question_order, resolve_device
from lightcake_fast.training.step import EntityStep, TrainingStep

BLOCK = 2**16  # number of entity rows that are drawn at once


def build_model(
    config: TrainingConfig, num_entities: int, num_relations: int, generator: Generator | None = None
) -> RelationModel:
    """Make a new model with initial weights.

    Args:
        config: Configuration of the run.
        num_entities: N.
        num_relations: R, relations without inverses.
        generator: Random generator of the initial weights, on the device of the model. None uses PyTorch's
            default generator.

    Raises:
        InputError: The width or a term does not fit the model.
    """
    spec = MODELS[config.model]
    settings = {name: getattr(config, name) for name in (*SHARED_ARGUMENTS, *spec.arguments)}
    settings["inverses"] = config.task == "entity"
    return spec.make(num_entities, num_relations, generator=generator, **settings)


def by_entity(config: TrainingConfig) -> frozenset[str]:
    """Return the names of the model's tensors with one row per entity.

    The tensors differ in shape between a model with one and a model with two entities. A new tensor therefore
    needs no declaration.
    """
    with torch.device("meta"):
        one, two = (build_model(config, entities, 1).state_dict() for entities in (1, 2))
    return frozenset(name for name, tensor in one.items() if tensor.shape != two[name].shape)


def build_share(
    config: TrainingConfig, rows: Ids, num_entities: int, num_relations: int, generator: Generator
) -> RelationModel:
    """Make the model of `build_model` with the rows of some entities only.

    The whole entity table is never in memory. Its rows are drawn first, block by block. Then a model with one
    entity, the last one, continues the draws. Other weights with a row per entity are made in full and then
    cut.

    Args:
        config: Configuration of the run.
        rows: Entities, ascending.
        num_entities: N.
        num_relations: R, relations without inverses.
        generator: Random generator of the initial weights, on the CPU.
    """
    names = by_entity(config)
    if names != {"entities"}:
        model = build_model(config, num_entities, num_relations, generator)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in names:
                tensor.data = tensor.data[torch.from_numpy(rows)]
        return model
    bound, own = math.sqrt(6 / (num_entities + config.dim)), torch.empty(len(rows), config.dim)
    for start in range(0, num_entities, BLOCK):
        end = min(start + BLOCK, num_entities)
        block = torch.empty(end - start, config.dim)
        if end == num_entities:
            block[:-1].uniform_(-bound, bound, generator=generator)
            before = generator.get_state()
            block[-1:].uniform_(-bound, bound, generator=generator)
            generator.set_state(before)
        else:
            block.uniform_(-bound, bound, generator=generator)
        first, last = np.searchsorted(rows, [start, end])
        own[first:last] = block[torch.from_numpy(rows[first:last] - start)]
    model = build_model(config, 1, num_relations, generator)
    model.entities = nn.Parameter(own)
    return model


def check(config: TrainingConfig, data: KnowledgeGraph | ShardData) -> None:
    """Check a run against the machine and the data set, before anything is created.

    Raises:
        InputError: The device is missing or cannot capture a step. A split is empty. The model does not
            accept the width. The back end lacks the score or cannot run on the device.
    """
    for split in SPLITS:
        if not (data.counts[split] if isinstance(data, ShardData) else len(data.split(split))):
            raise InputError(f"{data.name}: expected at least one triple in the {split} split, got none")
    device = resolve_device(config.device)
    wants_capture(config.cuda_graph, device)
    check_settings(config, data)
    if config.layers and config.model in takers("backend"):
        runnable(config.backend, device.type)


def check_settings(config: TrainingConfig, data: KnowledgeGraph | ShardData) -> None:
    """Check for settings that contradict each other, independent of the machine.

    Raises:
        InputError: The model does not accept the width, or the back end lacks the score.
    """
    for name, term in TERMS.items():
        if config.cuda_graph == "on" and chosen(getattr(config, name)) and not term.fixed_shapes:
            raise InputError(
                f"cuda_graph: expected 'auto' or 'off' with {name}, got 'on': shapes change per step"
            )
    if config.layers and config.model == "lightcake":
        check_fused(config.score, config.backend)
    with torch.device("meta"):
        build_model(config, data.num_entities, data.num_relations)


class Experiment:
    """A model with everything for training and evaluation. Each part is made at its first use.

    The training loop adds run folder, signals and display. Inference adds names. Benchmarks time it.

    Args:
        config: Configuration of the run.
        data: Data set.
        model: Model on the device of `config`. None makes a new model.

    Attributes:
        config: The given configuration.
        data: The given data set. Its training triples are the context.
        device: Device of all tensors.
        generator: Random generator of the initial weights and of training.
        model: The model.
        randomness: Kind of device that a saved random state belongs to. Kinds of device have different
            generators.
    """

    def __init__(
        self, config: TrainingConfig, data: KnowledgeGraph, model: RelationModel | None = None
    ) -> None:
        self.config, self.data = config, data
        self.device = resolve_device(config.device)
        self.generator = Generator(self.device).manual_seed(config.seed)
        if model is None:
            model = build_model(config, data.num_entities, data.num_relations, self.generator)
        self.model = model
        self.randomness = self.device.type

    @classmethod
    def of(cls, **flags: Any) -> "Experiment":
        """Make the experiment for flags of `lightcake_fast.train`, given by name."""
        config = resolve(flags)
        return cls(config, load_dataset(config.dataset, **config.reading()))

    @property
    def parameters(self) -> int:
        """Number of learned parameters."""
        return sum(weight.numel() for weight in self.model.parameters())

    @cached_property
    def graph(self) -> ContextGraph:
        """The training triples as context graph."""
        sizes = self.data.num_entities, self.data.num_relations
        shared = ContextGraph.from_triples(self.data.train, *sizes, copy=False)  # shares memory
        return shared.to(self.device)

    @cached_property
    def seen(self) -> Tensor:
        """Bool `(N + 1,)`: entities with a training triple. The last element stands for unknown names."""
        seen = torch.from_numpy(self.data.seen_entities).to(self.device)
        return torch.cat([seen, seen.new_zeros(1)])

    @cached_property
    def step(self) -> TrainingStep:
        """The training step without CUDA graph."""
        kind = EntityStep if self._entities else TrainingStep
        return kind(self.model, self.graph, self.config, self.generator)

    def epoch(self, number: int) -> tuple[Tensor, ...]:
        """Start epoch 0, 1, ... with its learning rate.

        Returns:
            The batches for `advance`: numbers of training triples, int64 `(B,)`. For entity prediction,
                numbers of context triples, two per training triple.
        """
        self.step.start_epoch(number)
        if self._entities:
            heads, relations, _ = (ids.cpu() for ids in self.graph.context_triples)
            order = question_order(self.config.seed, number, heads, relations)
            return torch.split(order.to(self.device), 2 * self.config.batch_size)
        order = epoch_order(self.config.seed, number, len(self.data.train)).to(self.device)
        return torch.split(order, self.config.batch_size)

    def loss_sum(self) -> float:
        """Return the sum of the losses of this epoch's triples so far. This waits for the device."""
        return self.step.loss_sum.item()

    def advance(self, batch: Tensor) -> None:
        """Run a step on a batch, as a CUDA graph if configured."""
        self.model.train()
        self._advance(batch)

    @torch.no_grad()
    def refined(self, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Refine the tables in evaluation mode, without the context triples of `mask`."""
        return self.model.eval().refine(self.graph, mask=mask, backend=self.config.backend)

    @torch.no_grad()
    def scores(
        self, refined: tuple[Tensor, Tensor], pairs: Tensor, evidence: Evidence | None = None
    ) -> Tensor:
        """Score all relations of pairs in evaluation mode.

        Args:
            refined: Tables of `refined`.
            pairs: int64 `(B, 2)`.
            evidence: Evidence for the pairs. None uses the evidence of the whole graph.

        Returns:
            Scores `(B, R)`.
        """
        pairs = pairs.to(self.device)
        evidence = self.model.evidence(self.graph, pairs) if evidence is None else evidence
        return self.model.eval().relation_scores(refined, pairs, evidence, seen=self.seen)

    @torch.no_grad()
    def entity_scores(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        """Score all entities, `(B, N)`, for questions, int64 `(B, 2)`, in evaluation mode."""
        return self.model.eval().entity_scores(refined, questions.to(self.device))

    def ranks(
        self, split: str, ties: str | None = None, refined: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Return filtered ranks of relations, or of tails and heads. The training graph is the context.

        Args:
            split: "train", "valid" or "test".
            ties: Tie policy as in `relation_ranks`. None uses the configuration.
            refined: Refined tables. None computes them.

        Returns:
            float64 `(T,)` in CPU memory, ranks from 1. For entity prediction `(T, 2)`, the ranks of tail and
            head.

        Raises:
            NonFiniteScoresError: A score is NaN or infinite.
        """
        tables = self.refined() if refined is None else refined
        triples, ties = self.data.split(split), ties or self.config.ties
        if self._entities:
            return entity_ranks(
                lambda questions: self.entity_scores(tables, questions),
                triples,
                self.data.num_entities,
                self.data.num_relations,
                self._known_entities,
                ties=ties,
            )
        return triple_ranks(
            lambda pairs: self.scores(tables, pairs),
            triples,
            self._known,
            ties=ties,
            entries=self.model.entries,
        )

    def evaluate(self, split: str) -> Evaluation:
        """Return the metrics of a split (see `ranks`) for the current weights, not for their average."""
        return summarise_ranks(self.ranks(split), self.data.split(split), self.data.seen_entities)

    @property
    def _entities(self) -> bool:
        return self.config.task == "entity"

    @cached_property
    def _known_entities(self) -> KnownEntities:
        return KnownEntities.of(self.data)

    @cached_property
    def _known(self) -> KnownRelations:
        return KnownRelations.of(self.data)

    @cached_property
    def _advance(self) -> Callable[[Tensor], None]:
        # whether shapes change from step to step
        differs = self._entities or not all(term.fixed_shapes for term in self.model.terms.values())
        if differs or not wants_capture(self.config.cuda_graph, self.device):
            return self.step
        return CapturedStep(self.step, min(self.config.batch_size, self.graph.num_triples), self.generator)
