"""Optional terms of a model in addition to its context: a file per term, and their registration here."""

from lightcake_fast.models.terms.links import Links
from lightcake_fast.models.terms.mixing import Mixing
from lightcake_fast.models.terms.paths import Paths
from lightcake_fast.models.terms.profile import Profile
from lightcake_fast.models.terms.term import Term

# The terms of every model, by the fields of the configuration; models are made and trained in this order.
TERMS: dict[str, type[Term]] = {"profile": Profile, "links": Links, "paths": Paths}
# Terms inside the layers of LightCAKE.
LAYER_TERMS: dict[str, type[Mixing]] = {"mixing": Mixing}
ALL_TERMS: dict[str, type[Term] | type[Mixing]] = {**TERMS, **LAYER_TERMS}
