"""Context-aware knowledge-graph embedding (LightCAKE, PAKDD 2021, arXiv 2102.10826) with fused kernels."""

import signal
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightcake_fast.process import prepare_process, runs_a_command, set_environment

if TYPE_CHECKING:
    from lightcake_fast.data import KnowledgeGraph, load_dataset
    from lightcake_fast.graph import ContextGraph
    from lightcake_fast.inference import TrainedModel, load
    from lightcake_fast.models import LightCAKE, LightCAKEConv
    from lightcake_fast.ops import context_layer, context_weights, tune_context_layer
    from lightcake_fast.scores import Score, register_score
    from lightcake_fast.search import search
    from lightcake_fast.segments import Segments, segment_softmax_aggregate
    from lightcake_fast.train import train

if runs_a_command():
    set_environment()
    if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While Python locates the command, Ctrl-C ends the process as in a C program, without a traceback
        # from inside torch. `cli.run` later restores the handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

__version__ = "0.1.0"

_PUBLIC = {
    "ContextGraph": "lightcake_fast.graph",
    "KnowledgeGraph": "lightcake_fast.data",
    "LightCAKE": "lightcake_fast.models",
    "LightCAKEConv": "lightcake_fast.models",
    "Score": "lightcake_fast.scores",
    "Segments": "lightcake_fast.segments",
    "TrainedModel": "lightcake_fast.inference",
    "context_layer": "lightcake_fast.ops",
    "context_weights": "lightcake_fast.ops",
    "load": "lightcake_fast.inference",
    "load_dataset": "lightcake_fast.data",
    "register_score": "lightcake_fast.scores",
    "search": "lightcake_fast.search",
    "segment_softmax_aggregate": "lightcake_fast.segments",
    "train": "lightcake_fast.train",
    "tune_context_layer": "lightcake_fast.ops",
}
__all__ = [
    "ContextGraph",
    "KnowledgeGraph",
    "LightCAKE",
    "LightCAKEConv",
    "Score",
    "Segments",
    "TrainedModel",
    "__version__",
    "context_layer",
    "context_weights",
    "load",
    "load_dataset",
    "prepare_process",
    "register_score",
    "search",
    "segment_softmax_aggregate",
    "train",
    "tune_context_layer",
]


class _Package(ModuleType):
    """The package. Importing a submodule with the name of a public function keeps the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import lightcake_fast` stays cheap."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names too that are not imported yet."""
    return sorted({*globals(), *_PUBLIC})
