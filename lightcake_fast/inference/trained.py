"""A trained model with its names and its graph."""

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.data.nearest import nearest_names
from lightcake_fast.errors import InputError, counted
from lightcake_fast.inference.answers import (
    Candidate,
    Embeddings,
    EntityPrediction,
    EntityPredictions,
    Explanation,
    Prediction,
    Predictions,
    TripleScore,
    TripleScores,
)
from lightcake_fast.inference.entities import EntityRanking, Question, probabilities_of
from lightcake_fast.inference.explanation import Case, Explainer
from lightcake_fast.inference.pairs import name_rows
from lightcake_fast.inference.writing import check_target, write_embeddings
from lightcake_fast.metrics import (
    Evaluation,
    KnownRelations,
    NonFiniteScoresError,
    pairs_per_block,
    summarise_ranks,
)
from lightcake_fast.process import speed_up
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.experiment import Experiment, build_model
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import own_numerics, resolve_device
from lightcake_fast.training.state import check_tensors

_RANKED = {"relation": "relations", "entity": "entities"}  # by task
_UNSEEN = ", or train with --unseen-rate to allow unknown entities"


class TrainedModel:
    """A model with the weights of a run's best epoch. It takes and returns names.

    A `RelationModel` works with ids, and training gives it the context in each call. This class adds the data
    set, which maps names to ids.

    Args:
        experiment: The model, its data set, the back end and the device.

    Attributes:
        config: Configuration of the run.
        data: The data set; its training triples are the context.
        model: The model, in evaluation mode.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.config, self.data, self.model = experiment.config, experiment.data, experiment.model.eval()
        self._entity_ids = {name: index for index, name in enumerate(self.data.entities)}
        self._relation_ids = {name: index for index, name in enumerate(self.data.relations)}

    def __repr__(self) -> str:
        data = self.data
        return (
            f"TrainedModel({self.config.title} of width {self.config.dim} on {data.name}: "
            f"{counted(data.num_entities, 'entity')}, {counted(data.num_relations, 'relation')})"
        )

    @own_numerics()
    def predict(self, pairs: Iterable[Sequence[str]], top: int = 5) -> Predictions:
        """The likeliest relations of each pair.

        Args:
            pairs: (head, tail) names, as a list, an array `[K, 2]` or a DataFrame with two columns. Unknown
                entities use the learned unknown-entity embedding (see `--unseen-rate`).
            top: Number of relations per pair, at least 1.

        Raises:
            InputError: An entity is unknown and the model has no unknown-entity embedding (the message
                suggests names). Or `top` is below 1, or a score is not finite.
            TypeError: `pairs` is not a list of pairs, or a name is not a string.
        """
        self.check_task("relation")
        rows, top = name_rows(pairs, "pairs"), _checked_top(top)
        return Predictions(one for block in self._blocks(rows) for one in self._predicted(block, top))

    @own_numerics()
    def score(self, triples: Iterable[Sequence[str]]) -> TripleScores:
        """Score, probability and rank of given triples.

        Args:
            triples: (head, relation, tail) names, as a list, an array `[K, 3]` or a DataFrame with three
                columns. For unknown entities, see `predict`.

        Raises:
            InputError: See `predict`. Or a relation is unknown.
            TypeError: See `predict`.
        """
        self.check_task("relation")
        rows = name_rows(triples, "triples")
        return TripleScores(one for block in self._blocks(rows) for one in self._scored(block))

    @own_numerics()
    def explain(self, head: str, tail: str, top: int = 5, *, relation: str | None = None) -> Explanation:
        """Explain the score of a relation for a pair by triples of the graph.

        Args:
            head: Name of the head.
            tail: Name of the tail.
            top: Number of triples per context and of relations per term.
            relation: Name of the relation to explain; None means the likeliest relation.

        Raises:
            InputError: See `predict`. Or the relation is unknown, or the model has neither context layers
                nor terms.
            TypeError: See `predict`.
        """
        top = _checked_top(top)
        (prediction,) = self.predict([(head, tail)], top=1)
        ((h, t),), _ = self._ids([(head, tail)])
        likeliest = prediction.relations[0]
        chosen = likeliest.relation if relation is None else relation
        ids, names = (h, self.relation(chosen), t), (head, chosen, tail)
        return self._explained(Case(ids, names, "relation", likeliest, prediction.notes), top)

    @own_numerics()
    def predict_entities(self, questions: Iterable[Sequence[str | None]], top: int = 10) -> EntityPredictions:
        """The likeliest entities for each question. The run must have `--task entity`.

        Args:
            questions: (head, relation, tail) names, as a list or a DataFrame with three columns. The head or
                the tail is None: the model predicts it.
            top: Number of entities per question, at least 1.

        Raises:
            InputError: A name is unknown. A question does not ask for exactly one entity. `top` is below 1.
                The run ranks relations. A score is not finite.
            TypeError: `questions` is not a list of questions, or a name is not a string.
        """
        self.check_task("entity")
        rows, top = [self.question(row) for row in name_rows(questions, "questions")], _checked_top(top)
        return EntityPredictions(self._ranking.answer(rows, top))

    @own_numerics()
    def explain_entity(
        self, question: Sequence[str | None], top: int = 5, *, answer: str | None = None
    ) -> Explanation:
        """Explain the answer to a question by triples of the graph.

        Args:
            question: One question (see `predict_entities`).
            top: Number of triples per context.
            answer: Name of the entity to explain; None means the likeliest entity.

        Raises:
            InputError: See `predict_entities`. Or the model has no context layers.
            TypeError: See `predict_entities`.
        """
        top = _checked_top(top)
        (prediction,) = self.predict_entities([question], top=1)
        likeliest = prediction.entities[0]
        names = prediction.triple(likeliest.entity if answer is None else answer)
        ((head, tail),), (notes,) = self._ids([names[::2]])
        case = Case((head, self.relation(names[1]), tail), names, prediction.asked, likeliest, notes)
        return self._explained(case, top)

    @own_numerics()
    def embeddings(self) -> Embeddings:
        """Copies of the refined tables, with their names."""
        entities, relations = self._refined
        weights = self.model.state_dict().items()
        return Embeddings(
            _copied(entities[: self.data.num_entities]),
            _copied(relations),
            _copied(self._experiment.seen[:-1]),
            {name: _copied(value) for name, value in weights if name not in ("entities", "relations")},
            self.data.entities,
            self.data.relations,
        )

    def export(self, path: str | Path) -> Path:
        """Write the refined tables with their names, as `python -m lightcake_fast.export` does.

        Args:
            path: A new file, NAME.safetensors, or a new folder for `.npy` and `.tsv` files.

        Returns:
            The path with `~` expanded.

        Raises:
            InputError: The path exists.
        """
        target = check_target(path)
        write_embeddings(self.embeddings(), target)
        return target

    @own_numerics()
    def ranks(self, split: str = "test", ties: str | None = None) -> Tensor:
        """Filtered ranks of the relations of a split, float64 `[T]` (see `relation_ranks`).

        A run with `--task entity` gives the ranks of each triple's tail and head, float64 `[T, 2]`.

        Args:
            split: "train", "valid" or "test".
            ties: Tie policy (see `relation_ranks`); None means the policy of the run.

        Raises:
            InputError: A score is NaN or infinite.
        """
        try:
            return self._experiment.ranks(split, ties, self._refined)
        except NonFiniteScoresError as error:
            raise InputError(
                f"scores: expected finite scores, got an error ({error}): use a run that did not diverge"
            ) from error

    def evaluate(self, split: str = "test", ties: str | None = None) -> Evaluation:
        """Metrics of a split.

        They are bitwise equal to the metrics of training, on the same machine with the same number of
        threads.

        Args:
            split: See `ranks`.
            ties: See `ranks`.

        Raises:
            InputError: See `ranks`.
        """
        return summarise_ranks(self.ranks(split, ties), self.data.split(split), self.data.seen_entities)

    def entity(self, name: str, side: str) -> tuple[int, str | None]:
        """The id of an entity (N for an unknown name), and a note if it is unknown or unseen.

        Args:
            name: Name of the entity.
            side: "head" or "tail", for the note.

        Raises:
            InputError: See `predict`.
            TypeError: See `predict`.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"{side}: expected the name of an entity, got {name!r} ({type(name).__name__}): use a string"
            )
        learned = self.model.unknown_head is not None
        index = self._entity_ids.get(name)
        if index is None:
            if not learned:
                near = ", ".join(map(repr, self.nearest(name)))
                hint = f"nearest names: {near}" if near else "no similar names"
                raise InputError(
                    f"{side}: expected an entity of {self.data.name}, got {name!r}: use a known name ({hint})"
                    + _UNSEEN * (self.config.task == "relation")
                )
            return self.data.num_entities, f"{side} {name!r} is not in the data: {_stand_in(side)}"
        if self.data.seen_entities[index]:
            return index, None
        answer = _stand_in(side) if learned else "its embedding was never trained"
        return index, f"{side} {name!r} has no training triple: {answer}"

    def relation(self, name: str) -> int:
        """The id of a relation.

        Raises:
            InputError: The relation is unknown.
            TypeError: See `predict`.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"relation: expected the name of a relation, got {name!r} ({type(name).__name__}): "
                "use a string"
            )
        if name not in self._relation_ids:
            near = nearest_names(name, self.data.relations) or self.data.relations[:3]
            hint = f"use a known name, such as {', '.join(map(repr, near))}"
            raise InputError(f"relation: expected a relation of {self.data.name}, got {name!r}: {hint}")
        return self._relation_ids[name]

    def question(self, row: Sequence[Any]) -> Question:
        """Check and convert a question of `predict_entities`.

        Raises:
            InputError: See `predict_entities`.
            TypeError: See `predict_entities`.
        """
        names: list[Any] = [None if _is_missing(name) else name for name in row]
        head, relation, tail = names
        if (head is None) == (tail is None) or relation is None:
            raise InputError(
                "questions: expected None (? in a file) for either the head or the tail, "
                f"got {tuple(row)!r}: leave out one entity"
            )
        kind = self.relation(relation) + self.data.num_relations * (head is None)
        entity, note = self.entity(tail, "tail") if head is None else self.entity(head, "head")
        return Question(EntityPrediction(head, relation, tail, (), (note,) if note else ()), (entity, kind))

    def nearest(self, name: str) -> list[str]:
        """Up to three entity names that are similar to `name`."""
        return nearest_names(name, self.data.entities)

    def _explained(self, case: Case, top: int) -> Explanation:
        def refine(mask: Tensor | None) -> tuple[Tensor, Tensor]:
            return self._refined if mask is None else self._refine(mask)

        return Explainer(self._experiment, refine, case).explain(top)

    def check_task(self, wanted: str) -> None:
        """Check that the run was trained with `--task` `wanted` ("relation" or "entity").

        Raises:
            InputError: The run has another task.
        """
        if self.config.task != wanted:
            raise InputError(
                f"run: expected a run that ranks {_RANKED[wanted]}, got one that ranks "
                f"{_RANKED[self.config.task]}: train with --task {wanted}"
            )

    @cached_property
    def _ranking(self) -> EntityRanking:
        return EntityRanking(self._experiment, self._refined)

    @cached_property
    def _refined(self) -> tuple[Tensor, Tensor]:
        return self._refine(None)

    def _refine(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Refined entities and relations. For relation prediction, entities get a row for unknown names."""
        entities, relations = self._experiment.refined(mask)
        if self.config.task == "entity":
            return entities, relations
        return torch.cat([entities, entities.new_zeros(1, entities.shape[1])]), relations

    def _blocks(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Blocks of rows with the size of evaluation blocks, because all scores may not fit into memory."""
        size = pairs_per_block(self.model.entries)
        return (rows[start : start + size] for start in range(0, len(rows), size))

    def _predicted(self, rows: Sequence[tuple[Any, ...]], top: int) -> Iterator[Prediction]:
        """The likeliest relations of a block of pairs."""
        ids, notes = self._ids(rows)
        best = probabilities_of(self._pair_scores(ids)).topk(min(top, self.data.num_relations))
        known = self._in_training(ids)
        for place, (row, row_notes, rs, ps) in enumerate(
            zip(rows, notes, best.indices.tolist(), best.values.tolist(), strict=True)
        ):
            candidates = (
                Candidate(self.data.relations[r], p, (place, r) in known) for r, p in zip(rs, ps, strict=True)
            )
            yield Prediction(row[0], row[1], tuple(candidates), row_notes)

    def _scored(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[TripleScore]:
        """Score, probability and rank of a block of triples."""
        column = [[self.relation(relation)] for _, relation, _ in rows]
        relations = torch.tensor(column, device=self._experiment.device)
        ids, notes = self._ids([(head, tail) for head, _, tail in rows])
        scores = self._pair_scores(ids)
        given = scores.gather(1, relations)
        figures = (
            given[:, 0].tolist(),
            probabilities_of(scores).gather(1, relations)[:, 0].tolist(),
            ((scores > given).sum(1) + 1).tolist(),
        )
        known = self._in_training(ids)
        for place, ((head, relation, tail), score, probability, rank, (r,), row_notes) in enumerate(
            zip(rows, *figures, column, notes, strict=True)
        ):
            in_training = (place, r) in known
            yield TripleScore(head, relation, tail, score, probability, rank, in_training, row_notes)

    def _ids(self, pairs: Sequence[tuple[Any, ...]]) -> tuple[list[list[int]], list[tuple[str, ...]]]:
        """Ids of head and tail (N for an unknown name), and notes about them."""
        found = [(self.entity(head, "head"), self.entity(tail, "tail")) for head, tail in pairs]
        ids = [[index for index, _ in row] for row in found]
        return ids, [tuple(note for _, note in row if note) for row in found]

    def _in_training(self, ids: list[list[int]]) -> set[tuple[int, int]]:
        """(index in `ids`, relation) of the training triples of these pairs."""
        places, relations = self._training(np.array(ids))
        return set(zip(places.tolist(), relations.tolist(), strict=True))

    @cached_property
    def _training(self) -> KnownRelations:
        # + 1 for the id of unknown entities
        return KnownRelations(self.data.train, self.data.num_entities + 1)

    def _pair_scores(self, ids: list[list[int]]) -> Tensor:
        return self._experiment.scores(self._refined, torch.tensor(ids))


def load(
    run: str | Path,
    *,
    dataset: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    backend: str | None = None,
) -> TrainedModel:
    """Load the trained model of a run folder. The training may still run.

    An untrusted folder cannot run code: only JSON and checked safetensors files are read.

    Args:
        run: The run folder.
        dataset: New place of the data set, if it has moved (see `load_dataset`); None means the run's.
        data_dir: Folder of the public data sets (see `load_dataset`); None means the run's.
        device: Device, as `--device` in training; None means the run's.
        backend: Back end of `context_layer`; None means the run's.

    Raises:
        InputError: The folder or the data set is missing or damaged, or they do not belong together.
    """
    speed_up()
    folder = RunFolder.open(Path(run).expanduser())
    saved = folder.config
    config = dataclasses.replace(
        saved,
        dataset=saved.dataset if dataset is None else str(dataset),
        data_dir=saved.data_dir if data_dir is None else str(data_dir),
        device=device or saved.device,
        backend=backend or saved.backend,
    )
    resolve_device(config.device)
    return opened(folder, config, folder.load_dataset(config))


@own_numerics()
def opened(folder: RunFolder, config: TrainingConfig, data: KnowledgeGraph) -> TrainedModel:
    """Load the trained model of a run folder, with a data set that is already loaded.

    Raises:
        InputError: See `load`.
    """
    weights = folder.load_weights(data.fingerprint)
    try:
        with torch.device("meta"):  # the meta device allocates no memory before the sizes are checked
            model = build_model(config, data.num_entities, data.num_relations)
        check_tensors(weights, model.state_dict())
    except (ValueError, TypeError, RuntimeError) as error:  # a size beyond 64 bits is a TypeError
        raise InputError(f"{folder.path}: {error}") from error
    model.load_state_dict(weights, assign=True)
    return TrainedModel(Experiment(config, data, model.to(resolve_device(config.device))))


def _copied(table: Tensor) -> Tensor:
    return table.detach().to("cpu", copy=True)


def _stand_in(side: str) -> str:
    return f"the learned embedding of unknown {side}s is used"


def _checked_top(top: int) -> int:
    try:
        number = operator.index(top)
    except TypeError as error:
        raise TypeError(f"top: expected an integer, got {top!r}: use an integer") from error
    if number < 1:
        raise InputError(f"top: expected at least 1, got {top}: use a larger number")
    return number


def _is_missing(name: Any) -> bool:
    """Whether a name is missing: None, NaN or `pandas.NA`."""
    try:
        return name is None or bool(name != name)  # NaN
    except TypeError:  # pandas.NA is neither
        return True
    except ValueError:  # an array
        return False
