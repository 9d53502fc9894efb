"""Training of one model by several processes, each on its share of the data set."""

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
from lightcake_fast.models.terms.term import HeldPairs, Pairs
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

SMALL = 250_000  # training triples per process: with fewer, two processes took longer (docs/scale.md)


def check_sharded(config: TrainingConfig) -> None:
    """Reject settings that several processes cannot use.

    Raises:
        InputError: The configuration asks for a CUDA graph.
    """
    if config.cuda_graph == "on":
        raise InputError("cuda_graph: expected 'auto' or 'off' under torchrun, got 'on'")


def with_partition(explicit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the data set of the partition that the settings name.

    Raises:
        InputError: The settings name another data set, or the partition does not exist.
    """
    if explicit.get("partition") is None:
        return explicit
    # an older version did not save `header`: headers were triples then
    source = {"header": False, **read_index(Path(explicit["partition"]).expanduser())["source"]}
    for name, value in source.items():
        if name in explicit and explicit[name] != value:
            raise InputError(f"{name}: expected {value!r}, as in the partition, got {explicit[name]!r}")
    new = "resume" not in explicit
    return {**explicit, **{name: value for name, value in source.items() if new and value is not None}}


def load_share(config: TrainingConfig, world: World, whole: Callable[[], KnowledgeGraph]) -> ShardData:
    """Load this process's share of the run's data set.

    Args:
        config: Configuration of the run. It may name a partition.
        world: All processes.
        whole: Function that loads the data set if there is no partition.

    Raises:
        InputError: The partition is missing, damaged, or for another number of processes. See also `whole`.
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
    """`Experiment` for one of several ranks that train one model. All ranks must call its methods together.

    For relation prediction, a triple is scored on the rank of its head. The rank of the tail sends its row.
    For entity prediction see `ShardedQuestions`. Dropout draws depend on the numbers of rows and triples.
    They are therefore the same for any number of ranks.

    Args:
        config: Configuration of the run.
        data: This rank's share of the data set.
        world: All ranks.

    Attributes:
        config: The given configuration.
        data: The given share.
        world: The given ranks.
        device: Device of this rank.
        generator: Random generator of the initial weights, the same as for one process on a CPU.
        model: Model with this rank's entity rows. All other weights are the same on all ranks.
        by_entity: Names of the weights with one row per entity.
        questions: Questions of entity prediction, else None.
        randomness: Kind of random state in a checkpoint.
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
        self.questions = (
            ShardedQuestions(self.model, data, world, self.device) if config.task == "entity" else None
        )

    @property
    def parameters(self) -> int:
        """Number of learned parameters on all ranks."""
        return sum(
            self.data.num_entities * weight.shape[1:].numel() if name in self.by_entity else weight.numel()
            for name, weight in self.model.named_parameters()
        )

    @cached_property
    def step(self) -> "ShardedStep":
        """The training step."""
        return ShardedStep(self) if self.questions is None else ShardedEntityStep(self, self.questions)

    def epoch(self, number: int) -> tuple[Tensor, ...]:
        """Start epoch 0, 1, ..., with the order of a single process (see `Experiment.epoch`)."""
        self.step.start_epoch(number)
        if self.questions is not None:
            return torch.split(self.questions.order(self.config.seed, number), 2 * self.config.batch_size)
        order = epoch_order(self.config.seed, number, self.data.num_train)
        return torch.split(order, self.config.batch_size)

    def advance(self, batch: Tensor) -> None:
        """Run a step on a batch: numbers of all ranks' training triples, or of context triples."""
        self.model.train()
        self.step(batch)

    def loss_sum(self) -> float:
        """Return the sum of the losses of this epoch's triples so far, on all ranks."""
        return self.world.add(self.step.loss_sum.detach().cpu().clone()).item()

    @torch.no_grad()
    def evaluate(self, split: str) -> Evaluation:
        """Return the metrics of a split, with the whole training graph as context.

        Raises:
            NonFiniteScoresError: A score is NaN or infinite on any rank.
        """
        self.model.eval()
        tables = self.model.refine_shard(self.shard, None, None, self.config.backend)
        if self.questions is not None:
            return self.questions.evaluate(split, tables, self.config.ties)
        held, count = self.data.splits[split], self.data.counts[split]
        found = torch.zeros(count, 2, dtype=torch.float64)  # columns: rank; 1 if both entities are seen
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
        """Score the relations of held triples on the ranks of their heads.

        Args:
            tables: Refined own rows and relations.
            held: Triples of a split.
            places: Triples to score, the same triples in the same order on all ranks.

        Returns:
            The places of the triples with an own head. Their scores `(A, R)`. Bool `(A,)`: whether both
            entities have a training triple.
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
        """Return the sum of the losses of the training triples with an own head.

        The arguments are as in `scores`. `draws` selects the triples that use unknown entities.
        """
        mine, heads, tails, joined, _ = self._met(tables[0], held, places, draws)
        targets = torch.from_numpy(held.triples[mine, 1]).to(self.device)
        return self.model.pair_loss(heads, tails, tables[1], joined, targets, label_smoothing)

    def _met(
        self, entities: Tensor, held: HeldTriples, places: Ids, draws: NumberedDraws | None
    ) -> tuple[Ids, Tensor, Tensor, Tensor | None, Tensor]:
        """Places, rows of head, tail and pair, and seen flags of triples with an own head."""
        meeting = Meeting.of(held, places, self.data.layout)
        tails, no_tail = self._side("tail", entities, held, meeting.tails, draws)
        known = torch.ones_like(no_tail) if draws else ~no_tail
        order = torch.from_numpy(meeting.order).to(self.device)
        tails = functional.embedding(order, exchanged(tails, self.world, meeting.sent, meeting.received))
        known = self.world.exchange(known.byte()[:, None], meeting.sent, meeting.received)[order, 0] > 0
        heads, no_head = self._side("head", entities, held, meeting.heads, draws)
        pairs = self._pairs(held, meeting.heads, draws is not None)
        joined = self.model.joined(self.model.evidence_of("pair", pairs))
        return meeting.heads, heads, tails, joined, known & ~no_head

    def _side(
        self, side: str, entities: Tensor, held: HeldTriples, places: Ids, draws: NumberedDraws | None
    ) -> tuple[Tensor, Tensor]:
        """Return the rows of one side of triples for the score, and which of them are unknown."""
        pairs, column = self._pairs(held, places, draws is not None), 0 if side == "head" else 1
        rows = functional.embedding(pairs.ids[:, column], entities)
        if draws is None:
            unknown = ~self._seen[pairs.ids[:, column]]
        else:
            numbers = torch.from_numpy(held.number[places]).to(self.device)
            unknown = self.model.unknowns(draws.of_triples(numbers))[column]
        return self.model.rows_of(side, rows, unknown, self.model.evidence_of(side, pairs)), unknown

    def _pairs(self, held: HeldTriples, places: Ids, training: bool) -> Pairs:
        """Return held triples as local pairs. In training each triple is excluded from its own evidence."""
        triples = held.triples[places]
        return Pairs(
            self.shard.graph,
            torch.from_numpy(self.data.layout.local(triples[:, ::2])).to(self.device),
            self.model.entities.dtype,
            torch.from_numpy(triples[:, 1].copy()).to(self.device) if training else None,
            held=HeldPairs(self.shard, self.data.num_entities, held, places),
        )

    @cached_property
    def _seen(self) -> Tensor:
        return torch.from_numpy(self.data.seen).to(self.device)

    @cached_property
    def _known(self) -> KnownRelations:
        return KnownRelations(self.data.known, self.data.num_entities)


class ShardedStep(TrainingStep):
    """`TrainingStep` of one rank. Its loss covers the triples with an own head."""

    def __init__(self, experiment: ShardedExperiment) -> None:
        super().__init__(experiment.model, experiment.shard.graph, experiment.config, experiment.generator)
        self._experiment, self._epoch = experiment, 0
        self._draws = NumberedDraws(torch.from_numpy(experiment.data.layout.rows).to(experiment.device))

    def start_epoch(self, epoch: int) -> None:
        """See `TrainingStep`."""
        super().start_epoch(epoch)
        self._epoch = epoch

    def _loss(self, batch: Tensor) -> Tensor:
        """Return this rank's share of the mean loss of a batch: numbers of all ranks' training triples."""
        one = self._experiment
        held = one.data.splits["train"]
        places = held.places(batch.numpy())
        tables = self._refined_shard(batch, places)
        return one.loss(tables, held, places, self._draws, self._config.label_smoothing) / len(batch)

    def _refined_shard(self, batch: Tensor, places: Ids) -> tuple[Tensor, Tensor]:
        """Refine own rows and relations. If configured, mask the triples at these places in the context."""
        # the first triple identifies a batch: it is in only one batch of the epoch
        self._draws.seed(self._config.seed, self._epoch, int(batch[0]))
        mask = None
        if self._config.mask_targets:
            mask = self._mask.zero_().index_fill_(0, torch.from_numpy(places).to(self._mask.device), True)
        return self._model.refine_shard(self._experiment.shard, mask, self._draws, self._config.backend)

    def _add_shares(self) -> None:
        """Sum the gradients of the replicated weights over all ranks, in one message."""
        shared = [
            weight.grad
            for name, weight in self._model.named_parameters()
            if weight.grad is not None and name not in self._experiment.by_entity
        ]
        flat = self._experiment.world.add(torch.cat([gradient.reshape(-1) for gradient in shared]))
        for gradient, total in zip(shared, torch.split(flat, [g.numel() for g in shared]), strict=True):
            gradient.copy_(total.view_as(gradient))


class ShardedEntityStep(ShardedStep):
    """`EntityStep` of one rank. Its loss covers the answers and the entities that it owns."""

    weight = EntityStep.weight

    def __init__(self, experiment: ShardedExperiment, questions: ShardedQuestions) -> None:
        super().__init__(experiment)
        self._questions = questions

    def _loss(self, batch: Tensor) -> Tensor:
        """Return this rank's share of the mean loss of a batch: numbers of all ranks' context triples."""
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
