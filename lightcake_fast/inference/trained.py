"""A trained model with the names and the graph it belongs to."""

import dataclasses
import difflib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.inference.answers import Candidate, Embeddings, Explanation, Prediction
from lightcake_fast.inference.explanation import explain
from lightcake_fast.metrics import (
    Evaluation,
    KnownRelations,
    NonFiniteScoresError,
    summarise_ranks,
    triple_ranks,
)
from lightcake_fast.models import RelationModel
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.model import build_model
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import resolve_device
from lightcake_fast.training.state import check_tensors


class TrainedModel:
    """The weights of a run's best epoch, ready to answer in names.

    It holds a model rather than being one: a `RelationModel` knows ids and is told its context in each call,
    which training needs; whoever asks in names needs the data set as well.

    Args:
        config: The run's configuration, with the back end and the device to use.
        graph: The data set.
        model: On the device that `config` names.

    Attributes:
        config: As given.
        graph: As given; its training triples are the context.
        model: In evaluation mode.
    """

    def __init__(self, config: TrainingConfig, graph: KnowledgeGraph, model: RelationModel) -> None:
        self.config, self.graph, self.model = config, graph, model.eval()
        self._device = model.entities.device
        # one row more than there are entities: it stands for every name that is not in the data
        self._seen = torch.from_numpy(graph.seen_entities).to(self._device)
        self._seen = torch.cat([self._seen, self._seen.new_zeros(1)])
        self._entity_ids = {name: index for index, name in enumerate(graph.entities)}

    @classmethod
    def load(
        cls,
        run: str | Path,
        *,
        dataset: str | Path | None = None,
        data_dir: str | Path | None = None,
        device: str | None = None,
        backend: str | None = None,
    ) -> "TrainedModel":
        """Open a run folder, of a finished run or of one under way.

        A folder from a stranger runs no code: JSON and checked safetensors are all that is read.

        Args:
            run: The run folder.
            dataset: As in `load_dataset`, for a folder that has moved since; None takes the run's.
            data_dir: As in `load_dataset`; None takes the run's.
            device: As `--device` in training; None takes the run's.
            backend: As in `context_layer`; None takes the run's.

        Raises:
            InputError: The folder or the data set is missing, damaged, or one does not belong to the other.
        """
        folder = RunFolder.open(Path(run).expanduser())
        saved = folder.config
        config = dataclasses.replace(
            saved,
            dataset=saved.dataset if dataset is None else str(dataset),
            data_dir=saved.data_dir if data_dir is None else str(data_dir),
            device=device or saved.device,
            backend=backend or saved.backend,
        )
        place = resolve_device(config.device)
        graph = folder.load_dataset(config)
        weights = folder.load_weights(graph.fingerprint)
        try:
            with torch.device("meta"):  # no memory is taken for what the file may not hold
                model = build_model(config, graph.num_entities, graph.num_relations)
            check_tensors(weights, model.state_dict())
        except (ValueError, TypeError, RuntimeError) as error:  # a size beyond 64 bits is a TypeError
            raise InputError(f"{folder.path}: {error}") from error
        model.load_state_dict(weights, assign=True)
        return cls(config, graph, model.to(place))

    def predict(self, pairs: Iterable[tuple[str, str]], top: int = 5) -> list[Prediction]:
        """The likeliest relations of each pair.

        Args:
            pairs: (head, tail) names. A name that is not in the data is answered by the vector learned for
                unknown heads or tails.
            top: How many relations, at least 1.

        Raises:
            InputError: A name is not in the data and the model has no such vectors; the message suggests
                names that are. Or `top` is below 1, or scores are not finite.
        """
        if top < 1:
            raise InputError(f"top: got {top}, wanted at least 1")
        names = list(pairs)
        found = [(self.entity(head, "head"), self.entity(tail, "tail")) for head, tail in names]
        if not names:
            return []
        ids = torch.tensor([(head[0], tail[0]) for head, tail in found], device=self._device)
        probabilities = self._relation_scores(self._refined, ids).double().softmax(1)
        if not torch.isfinite(probabilities).all():
            raise InputError("the scores are NaN or infinite: wanted a run whose training did not diverge")
        best = probabilities.topk(min(top, self.graph.num_relations))
        return [
            Prediction(
                *pair,
                tuple(Candidate(self.graph.relations[r], p) for r, p in zip(rs, ps, strict=True)),
                tuple(note for _, note in notes if note),
            )
            for pair, notes, rs, ps in zip(
                names, found, best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]

    def explain(self, head: str, tail: str, top: int = 5) -> Explanation:
        """What in the graph the likeliest relation of a pair rests on.

        Args:
            head: Name of the head.
            tail: Name of the tail.
            top: How many context triples of the head, of the tail and of the relation.

        Raises:
            InputError: See `predict`; or the model has no context layers.
        """
        (prediction,) = self.predict([(head, tail)], top=1)
        ids = self.entity(head, "head")[0], self.entity(tail, "tail")[0]
        pair = torch.tensor([ids], device=self._device)

        def scores(mask: Tensor | None) -> Tensor:
            refined = self._refined if mask is None else self._refine(mask)
            return self._relation_scores(refined, pair)[0]

        return explain(
            prediction, ids, top, self.model, self.graph, self._context, scores, backend=self.config.backend
        )

    def embeddings(self) -> Embeddings:
        """The refined tables with their names."""
        entities, relations = (table.cpu() for table in self._refined)
        weights = self.model.state_dict().items()
        return Embeddings(
            entities[:-1],
            relations,
            self._seen[:-1].cpu(),
            {name: value.cpu() for name, value in weights if name not in ("entities", "relations")},
            self.graph.entities,
            self.graph.relations,
        )

    def ranks(self, split: str = "test", ties: str | None = None) -> Tensor:
        """The filtered rank of each triple's relation, float64 `[T]` (see `relation_ranks`).

        Args:
            split: "train", "valid" or "test".
            ties: As in `relation_ranks`; None takes the run's.

        Raises:
            InputError: Scores are NaN or infinite.
        """
        known = KnownRelations.of(self.graph)

        def score(pairs: Tensor) -> Tensor:
            return self._relation_scores(self._refined, pairs.to(self._device))

        try:
            return triple_ranks(score, self.graph.split(split), known, ties=ties or self.config.ties)
        except NonFiniteScoresError as error:
            raise InputError(f"{error}: wanted a run whose training did not diverge") from error

    def evaluate(self, split: str = "test", ties: str | None = None) -> Evaluation:
        """The metrics of a split: those of training to the last bit, on the same machine and threads.

        Args:
            split: See `ranks`.
            ties: See `ranks`.

        Raises:
            InputError: See `ranks`.
        """
        return summarise_ranks(self.ranks(split, ties), self.graph.split(split), self.graph.seen_entities)

    def entity(self, name: str, side: str) -> tuple[int, str | None]:
        """The id of an entity, N for a name that is not in the data, and a note if nothing was learned of it.

        Args:
            name: Name of the entity.
            side: "head" or "tail", for the note.

        Raises:
            InputError: See `predict`.
        """
        learned = self.model.unknown_head is not None
        index = self._entity_ids.get(name)
        if index is None:
            if not learned:
                near = ", ".join(map(repr, self.nearest(name)))
                hint = f"the nearest names are {near}" if near else "no name is near"
                raise InputError(
                    f"{side}: got {name!r}, wanted an entity of {self.graph.name} ({hint}); a model trained "
                    "with --unseen-rate also answers for unknown entities"
                )
            return self.graph.num_entities, f"{side} {name!r} is not in the data: {_stand_in(side)}"
        if self.graph.seen_entities[index]:
            return index, None
        answer = _stand_in(side) if learned else "its embedding was never trained"
        return index, f"{side} {name!r} has no training triple: {answer}"

    def nearest(self, name: str) -> list[str]:
        """Up to three names of entities that look like `name`."""
        return difflib.get_close_matches(name, self.graph.entities)

    @cached_property
    def _context(self) -> ContextGraph:
        triples = torch.from_numpy(self.graph.train).to(self._device)
        return ContextGraph.from_triples(triples, self.graph.num_entities, self.graph.num_relations)

    @cached_property
    def _refined(self) -> tuple[Tensor, Tensor]:
        return self._refine(None)

    @torch.no_grad()
    def _refine(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Entities `[N + 1, d]` and relations after the context."""
        entities, relations = self.model.refine(self._context, mask=mask, backend=self.config.backend)
        return torch.cat([entities, entities.new_zeros(1, entities.shape[1])]), relations

    @torch.no_grad()
    def _relation_scores(self, refined: tuple[Tensor, Tensor], pairs: Tensor) -> Tensor:
        return self.model.relation_scores(refined, pairs, seen=self._seen)


def _stand_in(side: str) -> str:
    return f"the vector learned for unknown {side}s answers"
