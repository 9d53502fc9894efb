"""Trained models in use: relations predicted and explained, a split evaluated, embeddings handed on."""

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
