"""Models that rank the relations of a pair of entities."""

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.lightcake import LightCAKE
from lightcake_fast.models.plain import PlainModel
from lightcake_fast.models.projected import TransH, TransR

__all__ = ["LightCAKE", "PlainModel", "RelationModel", "TransH", "TransR"]
