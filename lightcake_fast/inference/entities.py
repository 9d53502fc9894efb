"""Questions for entities: (head, relation, ?) and (?, relation, tail), answered from a model's scores."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.inference.answers import EntityCandidate, EntityPrediction
from lightcake_fast.metrics import SCORES_PER_BLOCK, KnownEntities
from lightcake_fast.training.experiment import Experiment


class Question(NamedTuple):
    """A question in names and ids.

    Attributes:
        asked: What it asks, without answers.
        ids: Of the known entity and of the relation, R more where the head is asked for.
    """

    asked: EntityPrediction
    ids: tuple[int, int]


def probabilities_of(scores: Tensor) -> Tensor:
    """The softmax of scores `(B, ...)` over a row, in float64.

    Raises:
        InputError: Scores are NaN or infinite.
    """
    probabilities = scores.double().softmax(1)
    if not torch.isfinite(probabilities).all():
        raise InputError("the scores are NaN or infinite: wanted a run whose training did not diverge")
    return probabilities


class EntityRanking:
    """All entities as answers, from one refinement of the tables.

    Args:
        experiment: The model and its data.
        refined: The tables.
    """

    def __init__(self, experiment: Experiment, refined: tuple[Tensor, Tensor]) -> None:
        self._experiment, self._refined, self._data = experiment, refined, experiment.data
        self._known = KnownEntities(self._data.train, self._data.num_relations)

    def answer(self, questions: Sequence[Question], top: int) -> Iterator[EntityPrediction]:
        """The `top` likeliest entities of each, in blocks of at most `SCORES_PER_BLOCK` scores.

        Raises:
            InputError: Scores are NaN or infinite.
        """
        size = max(1, SCORES_PER_BLOCK // self._data.num_entities)
        for start in range(0, len(questions), size):
            yield from self._block(questions[start : start + size], min(top, self._data.num_entities))

    def _block(self, questions: Sequence[Question], top: int) -> Iterator[EntityPrediction]:
        ids = np.array([question.ids for question in questions])
        scores = self._experiment.entity_scores(self._refined, torch.from_numpy(ids))
        best = probabilities_of(scores).topk(top)
        rows, entities = self._known(ids)
        known = set(zip(rows.tolist(), entities.tolist(), strict=True))
        figures = zip(questions, best.indices.tolist(), best.values.tolist(), strict=True)
        for row, (question, found, values) in enumerate(figures):
            candidates = (
                EntityCandidate(self._data.entities[e], p, (row, e) in known)
                for e, p in zip(found, values, strict=True)
            )
            yield dataclasses.replace(question.asked, entities=tuple(candidates))
