"""A trained model with the names and the graph it belongs to."""

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
_UNSEEN = "; a model trained with --unseen-rate also answers for unknown entities"


class TrainedModel:
    """The weights of a run's best epoch, ready to answer in names.

    It holds a model rather than being one: a `RelationModel` knows ids and is told its context in each call,
    which training needs; whoever asks in names needs the data set as well.

    Args:
        experiment: With the model, and with the back end and the device to use.

    Attributes:
        config: The run's configuration.
        data: The data set; its training triples are the context.
        model: In evaluation mode.
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
            pairs: (head, tail) names, as a list, an array `[K, 2]` or a DataFrame of two columns. A name that
                is not in the data is answered by the vector learned for unknown heads or tails.
            top: How many relations, at least 1.

        Raises:
            InputError: A name is not in the data and the model has no such vectors; the message suggests
                names that are. Or `top` is below 1, or scores are not finite.
            TypeError: What was given is no list of pairs, or a name is no string.
        """
        self.check_task("relation")
        rows, top = name_rows(pairs, "pairs"), _checked_top(top)
        return Predictions(one for block in self._blocks(rows) for one in self._predicted(block, top))

    @own_numerics()
    def score(self, triples: Iterable[Sequence[str]]) -> TripleScores:
        """Score, probability and rank of given triples.

        Args:
            triples: (head, relation, tail) names, as a list, an array `[K, 3]` or a DataFrame of three
                columns; unknown entities as in `predict`.

        Raises:
            InputError: See `predict`; or a relation is not in the data.
            TypeError: See `predict`.
        """
        self.check_task("relation")
        rows = name_rows(triples, "triples")
        return TripleScores(one for block in self._blocks(rows) for one in self._scored(block))

    @own_numerics()
    def explain(self, head: str, tail: str, top: int = 5, *, relation: str | None = None) -> Explanation:
        """What in the graph a relation of a pair rests on.

        Args:
            head: Name of the head.
            tail: Name of the tail.
            top: How many context triples of the head, of the tail and of the relation, and relations of
                each term.
            relation: Name of the relation, to see why it, or why not; None takes the likeliest.

        Raises:
            InputError: See `predict`; or the relation is not in the data, or the model has nothing to
                explain with: no context layers, profile, links or paths.
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
        """The likeliest entities for each question, of a run for `--task entity`.

        Args:
            questions: (head, relation, tail) names with None for the head or the tail, which is asked for,
                as a list or a DataFrame of three columns.
            top: How many entities, at least 1.

        Raises:
            InputError: A name is not in the data, a question does not ask for one entity, `top` is below 1,
                the run ranks relations, or scores are not finite.
            TypeError: What was given is no list of questions, or a name is no string.
        """
        self.check_task("entity")
        rows, top = [self.question(row) for row in name_rows(questions, "questions")], _checked_top(top)
        return EntityPredictions(self._ranking.answer(rows, top))

    @own_numerics()
    def explain_entity(
        self, question: Sequence[str | None], top: int = 5, *, answer: str | None = None
    ) -> Explanation:
        """What in the graph the answer to a question rests on.

        Args:
            question: As one of `predict_entities`.
            top: How many context triples of the head, of the tail and of the relation.
            answer: Name of an entity, to see why it, or why not; None takes the likeliest.

        Raises:
            InputError: See `predict_entities`; or the model has no context layers to explain with.
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
        """The refined tables with their names: copies, which are the caller's to change."""
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
            path: A new file, NAME.safetensors, or a new folder of `.npy` and `.tsv` files.

        Returns:
            Where they lie.

        Raises:
            InputError: There is something already.
        """
        target = check_target(path)
        write_embeddings(self.embeddings(), target)
        return target

    @own_numerics()
    def ranks(self, split: str = "test", ties: str | None = None) -> Tensor:
        """The filtered rank of each triple's relation, float64 `(T,)` (see `relation_ranks`).

        Where entities are ranked, those of each triple's tail and head, `(T, 2)`.

        Args:
            split: "train", "valid" or "test".
            ties: As in `relation_ranks`; None takes the run's.

        Raises:
            InputError: Scores are NaN or infinite.
        """
        try:
            return self._experiment.ranks(split, ties, self._refined)
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
        return summarise_ranks(self.ranks(split, ties), self.data.split(split), self.data.seen_entities)

    def entity(self, name: str, side: str) -> tuple[int, str | None]:
        """The id of an entity, N for a name that is not in the data, and a note if nothing was learned of it.

        Args:
            name: Name of the entity.
            side: "head" or "tail", for the note.

        Raises:
            InputError: See `predict`.
            TypeError: See `predict`.
        """
        if not isinstance(name, str):
            raise TypeError(f"{side}: got {name!r}, a {type(name).__name__}, wanted the name of an entity")
        learned = self.model.unknown_head is not None
        index = self._entity_ids.get(name)
        if index is None:
            if not learned:
                near = ", ".join(map(repr, self.nearest(name)))
                hint = f"the nearest names are {near}" if near else "no name is near"
                raise InputError(
                    f"{side}: got {name!r}, wanted an entity of {self.data.name} ({hint})"
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
            InputError: It is not in the data.
            TypeError: See `predict`.
        """
        if not isinstance(name, str):
            raise TypeError(f"relation: got {name!r}, a {type(name).__name__}, wanted the name of a relation")
        if name not in self._relation_ids:
            near = nearest_names(name, self.data.relations) or self.data.relations[:3]
            hint = f"as {', '.join(map(repr, near))}"
            raise InputError(f"relation: got {name!r}, wanted a relation of {self.data.name}, {hint}")
        return self._relation_ids[name]

    def question(self, row: Sequence[Any]) -> Question:
        """A question of `predict_entities`, its names checked.

        Raises:
            InputError: See `predict_entities`.
            TypeError: See `predict_entities`.
        """
        names: list[Any] = [None if _is_missing(name) else name for name in row]
        head, relation, tail = names
        if (head is None) == (tail is None) or relation is None:
            raise InputError(
                f"questions: got {tuple(row)!r}, wanted None (? in a file) for either the head or the tail"
            )
        kind = self.relation(relation) + self.data.num_relations * (head is None)
        entity, note = self.entity(tail, "tail") if head is None else self.entity(head, "head")
        return Question(EntityPrediction(head, relation, tail, (), (note,) if note else ()), (entity, kind))

    def nearest(self, name: str) -> list[str]:
        """Up to three names of entities that look like `name`."""
        return nearest_names(name, self.data.entities)

    def _explained(self, case: Case, top: int) -> Explanation:
        def refine(mask: Tensor | None) -> tuple[Tensor, Tensor]:
            return self._refined if mask is None else self._refine(mask)

        return Explainer(self._experiment, refine, case).explain(top)

    def check_task(self, wanted: str) -> None:
        """Raise an `InputError` for a run that was not trained for `--task` "relation" or "entity"."""
        if self.config.task != wanted:
            raise InputError(
                f"got a run that ranks {_RANKED[self.config.task]}, wanted one that ranks {_RANKED[wanted]} "
                f"(trained with --task {wanted})"
            )

    @cached_property
    def _ranking(self) -> EntityRanking:
        return EntityRanking(self._experiment, self._refined)

    @cached_property
    def _refined(self) -> tuple[Tensor, Tensor]:
        return self._refine(None)

    def _refine(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Entities and relations; where relations are ranked, a row more for every name not in the data."""
        entities, relations = self._experiment.refined(mask)
        if self.config.task == "entity":
            return entities, relations
        return torch.cat([entities, entities.new_zeros(1, entities.shape[1])]), relations

    def _blocks(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
        """As many rows at a time as evaluation ranks at once: scores of all of them might not fit."""
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
        """Ids of head and tail, N for an unknown name, and the notes on them."""
        found = [(self.entity(head, "head"), self.entity(tail, "tail")) for head, tail in pairs]
        ids = [[index for index, _ in row] for row in found]
        return ids, [tuple(note for _, note in row if note) for row in found]

    def _in_training(self, ids: list[list[int]]) -> set[tuple[int, int]]:
        """(place in `ids`, relation) of the training triples between these pairs."""
        places, relations = self._training(np.array(ids))
        return set(zip(places.tolist(), relations.tolist(), strict=True))

    @cached_property
    def _training(self) -> KnownRelations:
        return KnownRelations(self.data.train, self.data.num_entities + 1)  # one more: the unknown's id

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
    """The trained model of a run folder whose data set is at hand.

    Raises:
        InputError: See `load`.
    """
    weights = folder.load_weights(data.fingerprint)
    try:
        with torch.device("meta"):  # no memory is taken for what the file may not hold
            model = build_model(config, data.num_entities, data.num_relations)
        check_tensors(weights, model.state_dict())
    except (ValueError, TypeError, RuntimeError) as error:  # a size beyond 64 bits is a TypeError
        raise InputError(f"{folder.path}: {error}") from error
    model.load_state_dict(weights, assign=True)
    return TrainedModel(Experiment(config, data, model.to(resolve_device(config.device))))


def _copied(table: Tensor) -> Tensor:
    return table.detach().to("cpu", copy=True)


def _stand_in(side: str) -> str:
    return f"the vector learned for unknown {side}s answers"


def _checked_top(top: int) -> int:
    try:
        number = operator.index(top)
    except TypeError as error:
        raise TypeError(f"top: got {top!r}, wanted a whole number") from error
    if number < 1:
        raise InputError(f"top: got {top}, wanted at least 1")
    return number


def _is_missing(name: Any) -> bool:
    """Whether this is None or what pandas writes for it."""
    try:
        return name is None or bool(name != name)  # NaN
    except TypeError:  # pandas.NA is neither
        return True
    except ValueError:  # an array
        return False
