"""Models that score relations and entities."""

from lightcake_fast.models.a2n import A2N
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.compgcn import COMPOSITIONS, CompGCN, CompGCNLayer
from lightcake_fast.models.conv import LightCAKEConv
from lightcake_fast.models.lightcake import LightCAKE
from lightcake_fast.models.plain import PlainModel
from lightcake_fast.models.projected import TransR
from lightcake_fast.models.rgcn import DECOMPOSITIONS, RGCN, RGCNLayer
from lightcake_fast.models.specs import MODELS, SHARED_ARGUMENTS, ModelSpec, takers

__all__ = [
    "A2N",
    "COMPOSITIONS",
    "DECOMPOSITIONS",
    "MODELS",
    "RGCN",
    "SHARED_ARGUMENTS",
    "CompGCN",
    "CompGCNLayer",
    "LightCAKE",
    "LightCAKEConv",
    "ModelSpec",
    "PlainModel",
    "RGCNLayer",
    "RelationModel",
    "TransR",
    "takers",
]
