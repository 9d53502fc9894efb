"""Inference with trained models: prediction, explanation, evaluation and export of embeddings."""

from lightcake_fast.inference.answers import (
    Candidate,
    Context,
    ContextTriple,
    Embeddings,
    EntityCandidate,
    EntityPrediction,
    EntityPredictions,
    Explanation,
    Prediction,
    Predictions,
    Term,
    TripleScore,
    TripleScores,
)
from lightcake_fast.inference.trained import TrainedModel, load

__all__ = [
    "Candidate",
    "Context",
    "ContextTriple",
    "Embeddings",
    "EntityCandidate",
    "EntityPrediction",
    "EntityPredictions",
    "Explanation",
    "Prediction",
    "Predictions",
    "Term",
    "TrainedModel",
    "TripleScore",
    "TripleScores",
    "load",
]
