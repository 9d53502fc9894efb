"""The one description of a run: its fields are the flags, checked once and kept beside the checkpoint."""

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.errors import InputError
from lightcake_fast.files import parse_json
from lightcake_fast.metrics import TIES
from lightcake_fast.models import COMPOSITIONS, DECOMPOSITIONS, MODELS, PROFILES
from lightcake_fast.scores import BUILT_IN, SCORES
from lightcake_fast.training.flags import Flag
from lightcake_fast.training.flags import flag as _flag

PRESETS = ("paper", "best")
TASKS = ("relation", "entity")
READING = ("split", "strip", "header")  # settings of how a file or a folder becomes a data set
_SCORES_ALONE = [name for name, spec in MODELS.items() if not spec.context]
_GRAPH_NETWORKS = [name for name, spec in MODELS.items() if spec.context and name != "lightcake"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Everything that decides a run. Fields without a default come from a preset (see `presets`).

    Raises:
        InputError: A value has the wrong type or is out of bounds; the message names the field.
    """

    dataset: str = _flag(
        "data set: family (generated), fb15k-237, wn18rr, nell995, ddb14, the path of a folder with train, "
        "valid and test as .txt or .tsv, plain or .gz, or of a file of triples: .tsv, .csv, .nt, .parquet "
        "(default: family)",
        "data and folders",
        "family",
        metavar="NAME",
        on_resume=True,
        common=True,
    )
    split: str | None = _flag(
        "shares of train, valid and test, for a data set in one file (default: .8,.1,.1)",
        "data and folders",
        None,
        metavar="T,V,T",
        common=True,
    )
    strip: bool = _flag(
        "trim names: leave out spaces of any kind and byte order marks around them",
        "data and folders",
        False,
    )
    header: bool | None = _flag(
        "whether the first row of each file of triples is a header, which is left out (default: a row such "
        "as head, relation, tail is, with a warning)",
        "data and folders",
        None,
    )
    data_dir: str | None = _flag(
        "folder that holds the public data sets; else $LIGHTCAKE_FAST_DATA, the cache folder, a download",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
    )
    out: str | None = _flag(
        "new folder of the run (default: runs/DATASET-MODEL-TIME)",
        "data and folders",
        None,
        metavar="DIR",
        saved=False,
        common=True,
    )
    resume: str | None = _flag(
        "folder of a run that continues as if it had never stopped (default: a new run)",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
        saved=False,
        common=True,
    )
    partition: str | None = _flag(
        "under torchrun: the folder that lightcake_fast.partition wrote, of which each process reads its own "
        "part; else each reads the whole data set and takes its part",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
        saved=False,
    )
    preset: str = _flag(
        "source of the settings that are not given: best (chosen on validation for the data set and score; "
        "for other data by the number of triples) or paper (width 256, 4 layers, batch size 512, learning "
        "rate 5e-3, l2 1e-7, at most 20 epochs, no options) (default: best)",
        "model",
        "best",
        choices=PRESETS,
        common=True,
    )
    task: str = _flag(
        "predicted answer: the relation of a pair, or the entity of (head, relation, ?) and (?, relation, "
        "tail) (default: relation)",
        "model",
        "relation",
        choices=TASKS,
        common=True,
    )
    model: str = _flag(
        "lightcake, the context layers with the score function of --score; or a baseline: a score function "
        f"without layers ({', '.join(_SCORES_ALONE)}) or a graph network ({', '.join(_GRAPH_NETWORKS)}); "
        "--model complex has no layers, --score complex has layers (default: lightcake)",
        "model",
        "lightcake",
        choices=tuple(MODELS),
        common=True,
    )
    score: str = _flag(
        f"score function of the context layers: {', '.join(BUILT_IN)} (transh has no kernels on a GPU), or "
        "your own score as MODULE:NAME, which runs its code (default: distmult)",
        "model",
        "distmult",
        metavar="SCORE",
        choices=lambda: tuple(SCORES),
        by_module=True,
        common=True,
    )
    context: str = _flag(
        "contexts that refine the embeddings (default: both)",
        "model",
        "both",
        choices=("both", "entity", "relation"),
    )
    rows: str = _flag(
        "what context triples read of the entities: float32, or bfloat16, a copy of half the bytes; sums, "
        "gradients and parameters stay float32 (default: float32)",
        "model",
        "float32",
        choices=("float32", "bfloat16"),
    )
    layers: int = _flag(
        "number of context layers (0 for the plain score) or of convolutions (at least 1) (default: from the "
        "preset)",
        "model",
        at_least=0,
        below=1000,
        metavar="L",
        common=True,
    )
    decomposition: str = _flag(
        "matrices of the relations, each of its own, combinations of bases, or block-diagonal "
        "(default: basis)",
        "model",
        "basis",
        choices=DECOMPOSITIONS,
    )
    bases: int = _flag(
        "bases, or blocks of a block-diagonal matrix (default: 4)", "model", 4, at_least=1, metavar="B"
    )
    composition: str = _flag(
        "what joins a neighbour and its relation: difference, product, circular correlation (default: mult)",
        "model",
        "mult",
        choices=COMPOSITIONS,
    )
    dim: int = _flag(
        "embedding width (default: from the preset)", "model", at_least=1, metavar="D", common=True
    )
    relation_bias: bool = _flag(
        "add a learned number a relation to its scores: settles pairs that say nothing else", "model"
    )
    profile: str = _flag(
        "add to the rows of head and tail what their relations, counted, say: none, at the score, or both "
        "there and before the first layer",
        "model",
        choices=PROFILES,
    )
    links: bool = _flag("add to the scores what the relations that are known to join the pair say", "model")
    paths: bool = _flag(
        "add to the scores what the paths of two triples that join the pair say", "model", False
    )
    mixing: bool = _flag("a layer adds its context sums times a matrix that it learns", "model")
    batch_size: int = _flag("training triples a step", "optimisation", at_least=1, metavar="B")
    lr: float = _flag(
        "learning rate (default: from the preset)", "optimisation", above=0, metavar="LR", common=True
    )
    lr_decay: float = _flag(
        "share by which the learning rate falls after each epoch (default: from the preset)",
        "optimisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    l2: float = _flag(
        "c adds c/2 times the sum of squares of both embedding tables to the loss",
        "optimisation",
        at_least=0,
        metavar="C",
    )
    negatives: int = _flag(
        "where entities are ranked: a step compares its answers with the entities of its own triples and so "
        "many drawn at random; 0, and as many as there are or more, with all entities (default: 0)",
        "optimisation",
        0,
        at_least=0,
        metavar="K",
    )
    weight_average: float = _flag(
        "decay of the exponential moving average (EMA) of the weights, which is ranked and kept (default: 0, "
        "without average)",
        "optimisation",
        0.0,
        at_least=0,
        below=1,
        metavar="P",
    )
    epochs: int = _flag(
        "maximum number of epochs (default: from the preset)",
        "optimisation",
        at_least=1,
        metavar="E",
        on_resume=True,
        common=True,
    )
    patience: int = _flag(
        "stop after this many epochs without a better validation MRR",
        "optimisation",
        at_least=1,
        metavar="P",
        on_resume=True,
    )
    seed: int = _flag(
        "seed of one run; --seeds trains one run per seed (default: 0)",
        "optimisation",
        0,
        at_least=0,
        below=2**63,
        metavar="S",
        common=True,
    )
    label_smoothing: float = _flag(
        "share of an answer's weight in the loss that goes to all answers alike",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    n3: float = _flag(
        "where entities are ranked: c adds c times the cubes of the moduli in the refined rows of head, "
        "relation and tail, a mean over triples (default: 0)",
        "regularisation",
        0.0,
        at_least=0,
        metavar="C",
    )
    input_dropout: float = _flag(
        "share of the values of the tables dropped before the first layer",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    row_dropout: float = _flag(
        "share of entity rows set to zero before the first layer: a model must not lean on one entity",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    unseen_rate: float = _flag(
        "share of pairs in which a learned unknown entity stands in for the head or the tail; it later "
        "stands for entities without a training triple",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    mask_targets: bool = _flag(
        "mask the batch's triples in the context to avoid label leakage", "regularisation"
    )
    ties: str = _flag(
        "rank of a true relation that ties with others: mean, best or worst possible, or by relation id as "
        "published figures were made (default: realistic)",
        "running",
        "realistic",
        choices=TIES,
    )
    backend: str = _flag(
        "kernels of the context layers (default: auto)",
        "running",
        "auto",
        choices=("auto", "triton", "numba", "reference"),
        on_resume=True,
    )
    device: str = _flag(
        "device of the run: auto (a GPU if there is one), cpu, cuda or cuda:N (default: auto)",
        "running",
        "auto",
        metavar="DEVICE",
        on_resume=True,
        common=True,
    )
    cuda_graph: str = _flag(
        "launch a training step as one CUDA graph, with the same results: auto does on a GPU (default: auto)",
        "running",
        "auto",
        choices=("auto", "on", "off"),
        on_resume=True,
        saved=False,
    )
    quiet: bool = _flag("print the test metrics only", "running", False, on_resume=True, saved=False)

    def __post_init__(self) -> None:
        for field, flag, kind in fields():
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if isinstance(value, np.generic):  # of a loop over `np.logspace`
                value = value.item()
                object.__setattr__(self, field.name, value)
            if kind == "float" and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            if type(value).__name__ != kind or not flag.accepts(value) or "\0" in str(value):
                raise InputError(f"{field.name}: got {value!r}, wanted {flag.wanted(kind, value)}")

    @classmethod
    def from_json(cls, text: str) -> "TrainingConfig":
        """Read what `to_json` wrote; a setting that came later is at its default.

        Raises:
            InputError: Not JSON, no object, an unknown field, a missing one without a default, a wrong value.
        """
        values = parse_json(text)
        if not isinstance(values, dict):
            raise InputError(
                f"got a JSON {type(values).__name__}, wanted an object with a field for each flag"
            )
        saved = {field.name for field, flag, _ in fields() if flag.saved}
        for problem, names in (
            ("unknown", values.keys() - saved),
            ("missing", saved - complete(values).keys()),
        ):
            if names:
                raise InputError(f"{problem} fields: {', '.join(sorted(names))}")
        return cls(**complete(values))

    def reading(self) -> dict[str, Any]:
        """How the data set is found and read, as keywords of `load_dataset`."""
        return {name: getattr(self, name) for name in ("data_dir", *READING)}

    @property
    def title(self) -> str:
        """The model in a word, with LightCAKE's score."""
        return f"{self.model}-{self.score}" if "score" in MODELS[self.model].own else self.model

    def to_json(self) -> str:
        """The saved fields as a JSON object, a line each."""
        return json.dumps(self.saved(), indent=2) + "\n"

    def saved(self) -> dict[str, Any]:
        """The fields that belong to the run."""
        return {field.name: getattr(self, field.name) for field, flag, _ in fields() if flag.saved}

    def fixed(self) -> dict[str, Any]:
        """The fields that stay as they are for the whole life of a run."""
        return {
            field.name: getattr(self, field.name)
            for field, flag, _ in fields()
            if flag.saved and not flag.on_resume
        }

    def anchored(self) -> "TrainingConfig":
        """The same with absolute paths, so that a run resumes from any working directory."""
        dataset, data_dir = self.dataset, self.data_dir
        if dataset_key(dataset) is None:
            dataset = str(Path(dataset).expanduser().absolute())
        if data_dir is not None:
            data_dir = str(Path(data_dir).expanduser().absolute())
        return dataclasses.replace(self, dataset=dataset, data_dir=data_dir)


def fields() -> Iterator[tuple["dataclasses.Field[Any]", Flag, str]]:
    """Each field of `TrainingConfig` with its flag and the name of its type (None left aside)."""
    hints = typing.get_type_hints(TrainingConfig)
    for field in dataclasses.fields(TrainingConfig):
        kind = next(iter(typing.get_args(hints[field.name])), hints[field.name])
        yield field, field.metadata["flag"], kind.__name__


def complete(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were saved, and those that came later at their default; headers were triples before."""
    defaults = {f.name: f.default for f, _, _ in fields() if f.default is not MISSING}
    return defaults | {"header": False} | dict(saved)


def dataset_key(dataset: str) -> str | None:
    """The name under which a data set has settings of its own; None for a folder of the user's."""
    name = dataset.lower().partition(":")[0]
    return name if name == "family" or dataset.lower() in PUBLIC_DATASETS else None
