"""Models that rank the relations of a pair of entities."""

from lightcake_fast.models.lightcake import LightCAKE

__all__ = ["LightCAKE"]
