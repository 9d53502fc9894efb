"""One record per model, with all facts that flags, presets, tables and training need."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lightcake_fast.models.a2n import A2N
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.compgcn import CompGCN
from lightcake_fast.models.lightcake import LightCAKE
from lightcake_fast.models.plain import PlainModel
from lightcake_fast.models.projected import TransR
from lightcake_fast.models.rgcn import RGCN
from lightcake_fast.models.terms import LAYER_TERMS, TERMS

# Fields of the configuration that every model accepts.
SHARED_ARGUMENTS = (
    "dim",
    "relation_bias",
    "input_dropout",
    "row_dropout",
    "unseen_rate",
    *TERMS,
)


@dataclass(frozen=True)
class ModelSpec:
    """The facts about a model that other modules need.

    Attributes:
        make: Makes the model from the arguments of `RelationModel` and `arguments`.
        label: Its name in tables, as in the paper if it is there.
        arguments: Fields of the configuration that `make` accepts in addition to `SHARED_ARGUMENTS`.
        context: Fields of the configuration for training with the graph; empty for a score without context.
        nearest: The LightCAKE score with the presets for this model; None uses the presets of the chosen
            `score`.
        ranks_entities: Whether it supports `--task entity`.
    """

    make: Callable[..., RelationModel]
    label: str
    arguments: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    nearest: str | None = "distmult"
    ranks_entities: bool = True

    @property
    def own(self) -> tuple[str, ...]:
        """The fields of the configuration that this model has and not every model has."""
        return self.arguments + self.context


def _plain(
    label: str, make: Callable[..., RelationModel], nearest: str, ranks_entities: bool = True
) -> ModelSpec:
    return ModelSpec(make, label, nearest=nearest, ranks_entities=ranks_entities)


MODELS: dict[str, ModelSpec] = {
    "lightcake": ModelSpec(
        LightCAKE,
        "LightCAKE",
        arguments=("layers", "score", "context", "rows", *LAYER_TERMS),
        context=("mask_targets", "backend"),
        nearest=None,
    ),
    "transe": _plain("TransE", partial(PlainModel, score="transe"), "transe"),
    "distmult": _plain("DistMult", partial(PlainModel, score="distmult"), "distmult"),
    "complex": _plain("ComplEx", partial(PlainModel, score="complex"), "distmult"),
    "simple": _plain("SimplE", partial(PlainModel, score="simple"), "distmult"),
    "rotate": _plain("RotatE", partial(PlainModel, score="rotate"), "transe"),
    "transh": _plain("TransH", partial(PlainModel, score="transh"), "transe", ranks_entities=False),
    "transr": _plain("TransR", TransR, "transe", ranks_entities=False),
    "rgcn": ModelSpec(
        RGCN,
        "R-GCN",
        arguments=("layers", "decomposition", "bases"),
        context=("mask_targets",),
    ),
    "compgcn": ModelSpec(
        CompGCN,
        "CompGCN-like",
        arguments=("layers", "composition"),
        context=("mask_targets",),
    ),
    "a2n": ModelSpec(A2N, "A2N-like", context=("mask_targets", "backend")),
}


def takers(setting: str) -> list[str]:
    """Return the models that have a field of the configuration; empty for a field that all models have."""
    return [name for name, spec in MODELS.items() if setting in spec.own]
