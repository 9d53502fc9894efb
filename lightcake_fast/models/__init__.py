"""Models that rank the relations of a pair of entities."""

from collections.abc import Callable
from functools import partial

from lightcake_fast.models.a2n import A2N
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.lightcake import LightCAKE
from lightcake_fast.models.plain import PlainModel
from lightcake_fast.models.projected import TransH, TransR
from lightcake_fast.models.rgcn import DECOMPOSITIONS, RGCN, RGCNLayer
from lightcake_fast.models.scorers import SCORERS

__all__ = [
    "A2N",
    "DECOMPOSITIONS",
    "MODELS",
    "RGCN",
    "LightCAKE",
    "PlainModel",
    "RGCNLayer",
    "RelationModel",
    "TransH",
    "TransR",
]

MODELS: dict[str, Callable[..., RelationModel]] = {
    "lightcake": LightCAKE,
    **{name: partial(PlainModel, score=name) for name in SCORERS},
    "transh": TransH,
    "transr": TransR,
    "rgcn": RGCN,
    "a2n": A2N,
}
