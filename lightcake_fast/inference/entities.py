"""Entity prediction: the likeliest entities for (head, relation, ?) and (?, relation, tail)."""

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
    """A question with names and ids.

    Attributes:
        asked: The question, without answers.
        ids: Ids of the known entity and of the relation; a question for the head adds R to the relation id.
    """

    asked: EntityPrediction
    ids: tuple[int, int]


def probabilities_of(scores: Tensor) -> Tensor:
    """The softmax of scores `[B, C]` over each row, in float64.

    Raises:
        InputError: A score is NaN or infinite.
    """
    probabilities = scores.double().softmax(1)
    if not torch.isfinite(probabilities).all():
        raise InputError(
            "scores: expected finite scores, got NaN or infinite scores: use a run that did not diverge"
        )
    return probabilities


class EntityRanking:
    """Rank all entities as answers.

    Args:
        experiment: The model and its data.
        refined: Refined entities and relations.
    """

    def __init__(self, experiment: Experiment, refined: tuple[Tensor, Tensor]) -> None:
        self._experiment, self._refined, self._data = experiment, refined, experiment.data
        self._known = KnownEntities(self._data.train, self._data.num_relations)

    def answer(self, questions: Sequence[Question], top: int) -> Iterator[EntityPrediction]:
        """Yield the `top` likeliest entities per question, in blocks of at most `SCORES_PER_BLOCK` scores.

        Raises:
            InputError: A score is NaN or infinite.
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
