"""A model on a data set: its graph, its training step and its evaluation, with nothing on disk."""

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
from lightcake_fast.models.evidence import Evidence
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.training.captured import CapturedStep, wants_capture
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import epoch_order, question_order, resolve_device
from lightcake_fast.training.step import EntityStep, TrainingStep

BLOCK = 2**16  # entity rows that are drawn at once


def build_model(
    config: TrainingConfig, num_entities: int, num_relations: int, generator: Generator | None = None
) -> RelationModel:
    """A new model with initial weights.

    Args:
        config: The run's configuration.
        num_entities: N.
        num_relations: R, raw relations.
        generator: Source of the initial weights, on the device they shall lie on; None takes PyTorch's own.

    Raises:
        InputError: The width or the profile does not fit the model.
    """
    spec = MODELS[config.model]
    settings = {name: getattr(config, name) for name in (*SHARED_ARGUMENTS, *spec.arguments)}
    settings["inverses"] = config.task == "entity"
    return spec.make(num_entities, num_relations, generator=generator, **settings)


def by_entity(config: TrainingConfig) -> frozenset[str]:
    """The names of the model's tensors that have a row per entity.

    Found by their shapes in models of one and of two entities, so that a new tensor needs no declaration.
    """
    with torch.device("meta"):
        one, two = (build_model(config, entities, 1).state_dict() for entities in (1, 2))
    return frozenset(name for name, tensor in one.items() if tensor.shape != two[name].shape)


def build_share(
    config: TrainingConfig, rows: Ids, num_entities: int, num_relations: int, generator: Generator
) -> RelationModel:
    """The model that `build_model` makes, with some entities' rows alone.

    The table of entities is never there whole: its rows are drawn first, block by block; a model of one
    entity, the last, goes on in the draws. Other weights with a row per entity are made whole and cut.

    Args:
        config: The run's configuration.
        rows: The entities, ascending.
        num_entities: N.
        num_relations: R, raw relations.
        generator: Source of the initial weights, on the CPU.
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
    """Find what only the machine and the data set can tell, before anything is made.

    Raises:
        InputError: The device is not there, cannot capture a step, a split is empty, the model does not take
            the width, or the back end lacks the score or cannot run on the device.
    """
    for split in SPLITS:
        if not (data.counts[split] if isinstance(data, ShardData) else len(data.split(split))):
            raise InputError(f"{data.name}: its {split} split is empty, wanted at least one triple")
    device = resolve_device(config.device)
    wants_capture(config.cuda_graph, device)
    check_settings(config, data)
    if config.layers and config.model in takers("backend"):
        runnable(config.backend, device.type)


def check_settings(config: TrainingConfig, data: KnowledgeGraph | ShardData) -> None:
    """Find settings that do not go together, whatever the machine.

    Raises:
        InputError: The model does not take the width, or the back end lacks the score.
    """
    if config.paths and config.cuda_graph == "on":
        raise InputError("cuda_graph: got 'on' with paths, whose steps differ in shape")
    if config.layers and config.model == "lightcake":
        check_fused(config.score, config.backend)
    with torch.device("meta"):
        build_model(config, data.num_entities, data.num_relations)


class Experiment:
    """A model with all that trains and ranks it, each part made when it is first needed.

    The training loop adds a run folder, signals and a display; inference adds names; benchmarks time it.

    Args:
        config: The run's configuration.
        data: The data set.
        model: On the device that `config` names; None makes a new one.

    Attributes:
        config: As given.
        data: As given; its training triples are the context.
        device: Where everything lies.
        generator: Source of the initial weights and of all randomness in training.
        model: The model.
        randomness: What a checkpoint's random state belongs to: kinds of device differ in their generators.
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
        """The one that flags of `lightcake_fast.train` describe, by their names."""
        config = resolve(flags)
        return cls(config, load_dataset(config.dataset, **config.reading()))

    @property
    def parameters(self) -> int:
        """The numbers that the model learns."""
        return sum(weight.numel() for weight in self.model.parameters())

    @cached_property
    def graph(self) -> ContextGraph:
        """The training triples as context."""
        sizes = self.data.num_entities, self.data.num_relations
        shared = ContextGraph.from_triples(self.data.train, *sizes, copy=False)  # with the data set
        return shared.to(self.device)

    @cached_property
    def seen(self) -> Tensor:
        """Bool `(N + 1,)`: entities with a training triple; the last for names not in the data."""
        seen = torch.from_numpy(self.data.seen_entities).to(self.device)
        return torch.cat([seen, seen.new_zeros(1)])

    @cached_property
    def step(self) -> TrainingStep:
        """The training step as it is written, which `advance` takes."""
        kind = EntityStep if self._entities else TrainingStep
        return kind(self.model, self.graph, self.config, self.generator)

    def epoch(self, number: int) -> tuple[Tensor, ...]:
        """Begin epoch 0, 1, ...: set its step size.

        Returns:
            Its batches for `advance`, numbers of training triples, int64 `(B,)`; where entities are ranked,
            of context triples, two for each.
        """
        self.step.start_epoch(number)
        if self._entities:
            heads, relations, _ = (ids.cpu() for ids in self.graph.context_triples)
            order = question_order(self.config.seed, number, heads, relations)
            return torch.split(order.to(self.device), 2 * self.config.batch_size)
        order = epoch_order(self.config.seed, number, len(self.data.train)).to(self.device)
        return torch.split(order, self.config.batch_size)

    def loss_sum(self) -> float:
        """The losses of all triples since the epoch began; this waits for the device."""
        return self.step.loss_sum.item()

    def advance(self, batch: Tensor) -> None:
        """Step on a batch, captured as a CUDA graph where the configuration wants that."""
        self.model.train()
        self._advance(batch)

    @torch.no_grad()
    def refined(self, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What `RelationModel.refine` gives in evaluation, with the triples of `mask` left out."""
        return self.model.eval().refine(self.graph, mask=mask, backend=self.config.backend)

    @torch.no_grad()
    def scores(
        self, refined: tuple[Tensor, Tensor], pairs: Tensor, evidence: Evidence | None = None
    ) -> Tensor:
        """Scores `(B, R)` of pairs, int64 `(B, 2)`, in evaluation, from the tables that `refined` gave.

        The evidence is that of the whole graph, if no other is given.
        """
        pairs = pairs.to(self.device)
        evidence = self.model.evidence(self.graph, pairs) if evidence is None else evidence
        return self.model.eval().relation_scores(refined, pairs, evidence, seen=self.seen)

    @torch.no_grad()
    def entity_scores(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        """Scores `(B, N)` of all entities for questions, int64 `(B, 2)`, likewise (see `RelationModel`)."""
        return self.model.eval().entity_scores(refined, questions.to(self.device))

    def ranks(
        self, split: str, ties: str | None = None, refined: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """The filtered rank of each triple's relation, or tail and head, the training graph being context.

        Args:
            split: "train", "valid" or "test".
            ties: As in `relation_ranks`; None takes the configuration's.
            refined: Tables that are at hand; None refines them.

        Returns:
            float64 `(T,)` in CPU memory, ranks from 1; where entities are ranked `(T, 2)`, of tail and head.

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
        """The metrics of a split (see `ranks`), of the weights as they are, not of their average."""
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
        differs = self._entities or self.config.paths  # a step from the next, in shape
        if differs or not wants_capture(self.config.cuda_graph, self.device):
            return self.step
        return CapturedStep(self.step, min(self.config.batch_size, self.graph.num_triples), self.generator)
