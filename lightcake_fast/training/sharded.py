"""A model on a rank's share of a data set: the same training as in one process, divided among several."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.metrics import (
    Evaluation,
    KnownRelations,
    NonFiniteScoresError,
    RankMetrics,
    pairs_per_block,
    relation_ranks,
)
from lightcake_fast.models.draws import NumberedDraws
from lightcake_fast.models.evidence import evidence_of
from lightcake_fast.models.paths import PathCounts, PathKinds
from lightcake_fast.models.shared_paths import SharedPaths
from lightcake_fast.sharding.data import ShardData, read_index, read_share
from lightcake_fast.sharding.layer import Shard, exchanged
from lightcake_fast.sharding.partition import owners
from lightcake_fast.sharding.shard import HeldTriples, Ids, Meeting
from lightcake_fast.sharding.world import World
from lightcake_fast.terminal import tell
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.experiment import build_share, by_entity
from lightcake_fast.training.runtime import epoch_order, mixed_seed, resolve_device
from lightcake_fast.training.sharded_entities import ShardedQuestions
from lightcake_fast.training.step import EntityStep, TrainingStep, entities_compared

SMALL = 250_000  # training triples of a process: with fewer, two took longer than one (docs/scale.md)


def check_sharded(config: TrainingConfig) -> None:
    """Refuse what several processes cannot do.

    Raises:
        InputError: A CUDA graph is asked for.
    """
    if config.cuda_graph == "on":
        raise InputError("cuda_graph: got 'on' under torchrun, wanted 'auto' or 'off'")


def with_partition(explicit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings with the data set of the partition that they name.

    Raises:
        InputError: They name another data set, or there is no such partition.
    """
    if explicit.get("partition") is None:
        return explicit
    source = read_index(Path(explicit["partition"]).expanduser())["source"]
    for name, value in source.items():
        if name in explicit and explicit[name] != value:
            raise InputError(f"{name}: got {explicit[name]!r} with a partition of {value!r}, wanted that")
    new = "resume" not in explicit
    return {**explicit, **{name: value for name, value in source.items() if new and value is not None}}


def load_share(config: TrainingConfig, world: World, whole: Callable[[], KnowledgeGraph]) -> ShardData:
    """This process's share of the run's data set.

    Args:
        config: Of the run; it may name a partition.
        world: All processes.
        whole: Loads the data set, where there is no partition of it.

    Raises:
        InputError: The partition is for another number of processes, missing or damaged; or see `whole`.
    """
    check_sharded(config)
    if config.partition is not None:
        share = read_share(Path(config.partition).expanduser(), world.rank, world.ranks)
    else:
        data = whole()
        owner = owners(data.train, data.num_entities, world.ranks)
        share = ShardData.of(data, owner, world.rank, world.ranks)
    if world.first and world.ranks > 1 and share.num_train < SMALL * world.ranks:
        tell(
            "warning",
            f"{share.name} has {share.num_train:,} training triples for {world.ranks} processes: "
            "fewer may be faster (docs/scale.md)",
        )
    return share


class ShardedExperiment:
    """What `Experiment` is, for one of the ranks that train together; all must call its methods.

    For relations a batch's triples are scored where their heads live, by the rows that their tails' owners
    send; for entities see `ShardedQuestions`. What training drops is drawn by the numbers of rows and
    triples: any number of ranks draws the same.

    Args:
        config: The run's configuration.
        data: The rank's share of the data set.
        world: All ranks.

    Attributes:
        config: As given.
        data: As given.
        world: As given.
        device: Where this rank computes.
        generator: Source of the initial weights, those of one process on a CPU.
        model: With this rank's own entity rows; all other weights are the same on all ranks.
        by_entity: The names of the weights that have a row per entity.
        questions: Those of a run that ranks entities, else None.
        randomness: What a checkpoint's random state belongs to.
    """

    randomness = "numbered"

    def __init__(self, config: TrainingConfig, data: ShardData, world: World) -> None:
        self.config, self.data, self.world = config, data, world
        self.device = resolve_device(config.device)
        self.generator = Generator().manual_seed(config.seed)
        self.by_entity = by_entity(config)
        self.model = build_share(
            config, data.layout.rows, data.num_entities, data.num_relations, self.generator
        ).to(self.device)
        self.shard = Shard(data.layout, data.splits["train"], data.num_relations, world, self.device)
        data.check(world)
        self._in_training: tuple[PathCounts, Ids] | None = None
        self.questions = (
            ShardedQuestions(self.model, data, world, self.device) if config.task == "entity" else None
        )

    @property
    def parameters(self) -> int:
        """The numbers that the model learns, on all ranks."""
        return sum(
            self.data.num_entities * weight.shape[1:].numel() if name in self.by_entity else weight.numel()
            for name, weight in self.model.named_parameters()
        )

    @cached_property
    def step(self) -> "ShardedStep":
        """The training step."""
        return ShardedStep(self) if self.questions is None else ShardedEntityStep(self, self.questions)

    def epoch(self, number: int) -> tuple[Tensor, ...]:
        """Begin epoch 0, 1, ..., in the order of one process (see `Experiment.epoch`)."""
        self.step.start_epoch(number)
        if self.questions is not None:
            return torch.split(self.questions.order(self.config.seed, number), 2 * self.config.batch_size)
        order = epoch_order(self.config.seed, number, self.data.num_train)
        return torch.split(order, self.config.batch_size)

    def advance(self, batch: Tensor) -> None:
        """Step on a batch, numbers of the training triples of all ranks, or of context triples."""
        self.model.train()
        self.step(batch)

    def loss_sum(self) -> float:
        """The losses of all triples since the epoch began, on all ranks."""
        return self.world.add(self.step.loss_sum.detach().cpu().clone()).item()

    @torch.no_grad()
    def evaluate(self, split: str) -> Evaluation:
        """The metrics of a split, with the whole training graph as context.

        Raises:
            NonFiniteScoresError: A score is NaN or infinite, on whatever rank.
        """
        self.model.eval()
        tables = self.model.refine_shard(self.shard, None, None, self.config.backend)
        if self.questions is not None:
            return self.questions.evaluate(split, tables, self.config.ties)
        held, count = self.data.splits[split], self.data.counts[split]
        found = torch.zeros(count, 2, dtype=torch.float64)  # ranks, and whether both ends were seen
        block = pairs_per_block(self.model.entries)
        for start in range(0, count, block):
            numbers = np.arange(start, min(start + block, count))
            places, scores, seen = self.scores(tables, held, held.places(numbers))
            triples = held.triples[places]
            rows, others = (torch.from_numpy(ids).to(self.device) for ids in self._known(triples[:, ::2]))
            true = torch.from_numpy(triples[:, 1].copy()).to(self.device)
            try:
                ranks = relation_ranks(scores, true, (rows, others), ties=self.config.ties).cpu()
            except NonFiniteScoresError:
                ranks = torch.full((len(places),), torch.nan, dtype=torch.float64)
            found[torch.from_numpy(held.number[places])] = torch.stack([ranks, seen.double().cpu()], 1)
        ranks, seen = self.world.add(found).unbind(1)
        if ranks.isnan().any():
            raise NonFiniteScoresError(f"scores of {split} are NaN or infinite")
        return Evaluation(all=RankMetrics.from_ranks(ranks), seen=RankMetrics.from_ranks(ranks[seen > 0]))

    def scores(
        self, tables: tuple[Tensor, Tensor], held: HeldTriples, places: Ids
    ) -> tuple[Ids, Tensor, Tensor]:
        """Score the relations of held triples where their heads live.

        Args:
            tables: Refined own rows and relations.
            held: Triples of a split.
            places: Those to score: on all ranks the same triples, in one order.

        Returns:
            The places of the triples whose head is own; their scores `(A, R)`; bool `(A,)`, whether both ends
            have a training triple.
        """
        mine, heads, tails, joined, seen = self._met(tables[0], held, places, None)
        return mine, self.model.pair_scores(heads, tails, tables[1], joined), seen

    def loss(
        self,
        tables: tuple[Tensor, Tensor],
        held: HeldTriples,
        places: Ids,
        draws: NumberedDraws,
        label_smoothing: float,
    ) -> Tensor:
        """The sum of the losses of those training triples whose head is own.

        Arguments as in `scores`; `draws` says which triples are replaced by unknown ones.
        """
        mine, heads, tails, joined, _ = self._met(tables[0], held, places, draws)
        targets = torch.from_numpy(held.triples[mine, 1]).to(self.device)
        return self.model.pair_loss(heads, tails, tables[1], joined, targets, label_smoothing)

    def _met(
        self, entities: Tensor, held: HeldTriples, places: Ids, draws: NumberedDraws | None
    ) -> tuple[Ids, Tensor, Tensor, Tensor | None, Tensor]:
        """Of triples whose head is own: places, rows of head, tail and links, and whether both were seen."""
        meeting = Meeting.of(held, places, self.data.layout)
        heads, no_head, head_evidence = self._side("head", entities, held, meeting.heads, draws)
        tails, no_tail, tail_evidence = self._side("tail", entities, held, meeting.tails, draws)
        tails = self.model.rows_of("tail", tails, no_tail, tail_evidence)
        known = torch.ones_like(no_tail) if draws else ~no_tail
        order = torch.from_numpy(meeting.order).to(self.device)
        tails = functional.embedding(order, exchanged(tails, self.world, meeting.sent, meeting.received))
        known = self.world.exchange(known.byte()[:, None], meeting.sent, meeting.received)[order, 0] > 0
        heads = self.model.rows_of("head", heads, no_head, head_evidence)
        joined = None
        if self.model.links is not None or self.model.paths is not None:
            pairs, targets = self._pairs(held, meeting.heads, draws is not None)
            links = evidence_of(self.shard.graph).of_links(pairs, heads.dtype, targets)
            joined = self.model.joined(links, self._paths(held, meeting.heads, draws is not None))
        return meeting.heads, heads, tails, joined, known & ~no_head

    def _side(
        self, side: str, entities: Tensor, held: HeldTriples, places: Ids, draws: NumberedDraws | None
    ) -> tuple[Tensor, Tensor, Any]:
        """Rows of one side of triples, which of them are unknown, and their evidence."""
        column = 0 if side == "head" else 1
        pairs, targets = self._pairs(held, places, draws is not None)
        rows = functional.embedding(pairs[:, column], entities)
        if draws is None:
            unknown = ~self._seen[pairs[:, column]]
        else:
            numbers = torch.from_numpy(held.number[places]).to(self.device)
            unknown = self.model.unknowns(draws.of_triples(numbers))[column]
        evidence = None
        if self.model.profile is not None:
            graph = evidence_of(self.shard.graph)
            evidence = graph.of_entities(side, pairs, entities.dtype, targets)
        return rows, unknown, evidence

    def _pairs(self, held: HeldTriples, places: Ids, training: bool) -> tuple[Tensor, Tensor | None]:
        """Local rows of head and tail, and in training the relation, which is left out of the evidence."""
        triples = held.triples[places]
        pairs = torch.from_numpy(self.data.layout.local(triples[:, ::2])).to(self.device)
        return pairs, torch.from_numpy(triples[:, 1].copy()).to(self.device) if training else None

    def _paths(self, held: HeldTriples, places: Ids, training: bool) -> PathKinds | None:
        """The paths of triples whose head is own, if the model reads them."""
        if self.model.paths is None:
            return None
        if training:
            # not a cached property: its lock would be held while others, here threads, are waited for
            self._in_training = self._in_training or self._paths_in_training()
            counts, pair = self._in_training
            found = counts.of(torch.from_numpy(pair[places]))
        else:
            found = self._shared_paths.counted(held.triples[places][:, ::2], held.owners[places, 1])
        return found.to(self.device).weighed(self.model.entities.dtype)

    def _paths_in_training(self) -> tuple[PathCounts, Ids]:
        """Those of the distinct pairs of training triples whose head is own, and which of them is each's."""
        held = self.data.splits["train"]
        own = np.flatnonzero(held.owners[:, 0] == self.data.layout.rank)
        heads, _, tails = held.triples[own].T
        keys, first, number = np.unique(
            heads * self.data.num_entities + tails, return_index=True, return_inverse=True
        )
        pair = np.zeros(len(held), np.int64)
        pair[own] = number
        pairs = np.stack(np.divmod(keys, self.data.num_entities), 1)
        return self._shared_paths.counted(pairs, held.owners[own[first], 1]), pair

    @cached_property
    def _shared_paths(self) -> SharedPaths:
        train, n = self.data.splits["train"], self.data.num_entities
        return SharedPaths(train, self.data.layout, n, self.data.num_relations, self.world)

    @cached_property
    def _seen(self) -> Tensor:
        return torch.from_numpy(self.data.seen).to(self.device)

    @cached_property
    def _known(self) -> KnownRelations:
        return KnownRelations(self.data.known, self.data.num_entities)


class ShardedStep(TrainingStep):
    """`TrainingStep` of one rank: its loss is the share of the triples whose heads are its own."""

    def __init__(self, experiment: ShardedExperiment) -> None:
        super().__init__(experiment.model, experiment.shard.graph, experiment.config, experiment.generator)
        self._experiment, self._epoch = experiment, 0
        self._draws = NumberedDraws(torch.from_numpy(experiment.data.layout.rows).to(experiment.device))

    def start_epoch(self, epoch: int) -> None:
        """See `TrainingStep`."""
        super().start_epoch(epoch)
        self._epoch = epoch

    def _loss(self, batch: Tensor) -> Tensor:
        """This rank's share of the mean loss of a batch, numbers of the training triples of all ranks."""
        one = self._experiment
        held = one.data.splits["train"]
        places = held.places(batch.numpy())
        tables = self._refined_shard(batch, places)
        return one.loss(tables, held, places, self._draws, self._config.label_smoothing) / len(batch)

    def _refined_shard(self, batch: Tensor, places: Ids) -> tuple[Tensor, Tensor]:
        """Own rows and relations, without the triples held at some places in the context, if so wanted."""
        # a batch is known by its first triple, which no other batch of the epoch has
        self._draws.seed(self._config.seed, self._epoch, int(batch[0]))
        mask = None
        if self._config.mask_targets:
            mask = self._mask.zero_().index_fill_(0, torch.from_numpy(places).to(self._mask.device), True)
        return self._model.refine_shard(self._experiment.shard, mask, self._draws, self._config.backend)

    def _add_shares(self) -> None:
        """Give the weights that all ranks have the sum of the ranks' gradients, in one message."""
        shared = [
            weight.grad
            for name, weight in self._model.named_parameters()
            if weight.grad is not None and name not in self._experiment.by_entity
        ]
        flat = self._experiment.world.add(torch.cat([gradient.reshape(-1) for gradient in shared]))
        for gradient, total in zip(shared, torch.split(flat, [g.numel() for g in shared]), strict=True):
            gradient.copy_(total.view_as(gradient))


class ShardedEntityStep(ShardedStep):
    """`EntityStep` of one rank: its loss is the share of its own answers and of its own entities' scores."""

    weight = EntityStep.weight

    def __init__(self, experiment: ShardedExperiment, questions: ShardedQuestions) -> None:
        super().__init__(experiment)
        self._questions = questions

    def _loss(self, batch: Tensor) -> Tensor:
        """This rank's share of the mean loss of a batch, numbers of the context triples of all ranks."""
        one = self._experiment
        asked, answers = self._questions.of(batch)
        places = one.data.splits["train"].places((batch % one.data.num_train).numpy())
        tables = self._refined_shard(batch, places)
        same = Generator().manual_seed(mixed_seed(self._config.seed, self._epoch, int(batch[0])))
        compared = entities_compared(
            asked[:, 0], answers, self._config.negatives, one.data.num_entities, same
        )
        smoothing = self._config.label_smoothing
        return self._questions.loss(tables, asked, answers, compared, smoothing, self._config.n3)
