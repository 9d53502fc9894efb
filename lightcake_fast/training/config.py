"""Configuration of a run. Its fields are the flags of the commands and are stored with each run."""

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
from lightcake_fast.models import COMPOSITIONS, DECOMPOSITIONS, MODELS
from lightcake_fast.models.terms.profile import PROFILES
from lightcake_fast.scores import BUILT_IN, SCORES
from lightcake_fast.training.flags import Flag
from lightcake_fast.training.flags import flag as _flag

PRESETS = ("paper", "best")
TASKS = ("relation", "entity")
READING = ("split", "strip", "header")  # settings for reading a file or a folder as a data set
_SCORES_ALONE = [name for name, spec in MODELS.items() if not spec.context]
_GRAPH_NETWORKS = [name for name, spec in MODELS.items() if spec.context and name != "lightcake"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """All settings of a run. Fields without a default come from a preset (see `presets`).

    Raises:
        InputError: A value has the wrong type or is out of bounds. The message names the field.
    """

    dataset: str = _flag(
        "data set: family (generated), fb15k-237, wn18rr, nell995, ddb14, the path of a folder with train, "
        "valid and test as .txt or .tsv, plain or .gz, or the path of a file of triples: .tsv, .csv, .nt, "
        ".parquet (default: family)",
        "data and folders",
        "family",
        metavar="NAME",
        on_resume=True,
        common=True,
    )
    split: str | None = _flag(
        "shares of train, valid and test for a data set in one file (default: .8,.1,.1)",
        "data and folders",
        None,
        metavar="T,V,T",
        common=True,
    )
    strip: bool = _flag(
        "remove spaces and byte order marks around names (default: keep them)",
        "data and folders",
        False,
    )
    header: bool | None = _flag(
        "treat the first row of each file of triples as a header (default: only a row such as head, "
        "relation, tail, with a warning)",
        "data and folders",
        None,
    )
    data_dir: str | None = _flag(
        "folder of the public data sets (default: $LIGHTCAKE_FAST_DATA, the cache folder, or a download)",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
    )
    out: str | None = _flag(
        "new folder for the run (default: runs/DATASET-MODEL-TIME)",
        "data and folders",
        None,
        metavar="DIR",
        saved=False,
        common=True,
    )
    resume: str | None = _flag(
        "folder of the run to resume (default: a new run)",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
        saved=False,
        common=True,
    )
    partition: str | None = _flag(
        "folder of lightcake_fast.partition, for torchrun: each process reads only its part (default: each "
        "process reads the whole data set and keeps its part)",
        "data and folders",
        None,
        metavar="DIR",
        on_resume=True,
        saved=False,
    )
    preset: str = _flag(
        "source of the settings that are not given: best (chosen on the validation split for the data set "
        "and score, for other data by the number of triples) or paper (width 256, 4 layers, batch size 512, "
        "learning rate 5e-3, l2 1e-7, at most 20 epochs, no options) (default: best)",
        "model",
        "best",
        choices=PRESETS,
        common=True,
    )
    task: str = _flag(
        "relation: predict the relation of a pair; entity: predict the missing entity of (head, relation, ?) "
        "and (?, relation, tail) (default: relation)",
        "model",
        "relation",
        choices=TASKS,
        common=True,
    )
    model: str = _flag(
        "lightcake: context layers with the score function of --score; or a baseline: a score function "
        f"without layers ({', '.join(_SCORES_ALONE)}) or a graph network ({', '.join(_GRAPH_NETWORKS)}); "
        "--model complex has no layers, --score complex has layers (default: lightcake)",
        "model",
        "lightcake",
        choices=tuple(MODELS),
        common=True,
    )
    score: str = _flag(
        f"score function of the context layers: {', '.join(BUILT_IN)} (transh has no kernels on a GPU), or "
        "your score as MODULE:NAME, which runs the code of the module (default: distmult)",
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
        "type of the entity rows that the context layers read; bfloat16 is a copy with half the bytes, while "
        "sums, gradients and parameters stay float32 (default: float32)",
        "model",
        "float32",
        choices=("float32", "bfloat16"),
    )
    layers: int = _flag(
        "number of context layers (0 for the plain score), or of graph convolutions (at least 1) (default: "
        "from the preset)",
        "model",
        at_least=0,
        below=1000,
        metavar="L",
        common=True,
    )
    decomposition: str = _flag(
        "form of the relation matrices: independent, combinations of bases, or block-diagonal "
        "(default: basis)",
        "model",
        "basis",
        choices=DECOMPOSITIONS,
    )
    bases: int = _flag(
        "number of bases, or of blocks of a block-diagonal matrix (default: 4)",
        "model",
        4,
        at_least=1,
        metavar="B",
    )
    composition: str = _flag(
        "composition of neighbor and relation: difference, product or circular correlation (default: mult)",
        "model",
        "mult",
        choices=COMPOSITIONS,
    )
    dim: int = _flag(
        "embedding width (default: from the preset)", "model", at_least=1, metavar="D", common=True
    )
    relation_bias: bool = _flag(
        "add a learned bias per relation to the scores (default: from the preset)",
        "model",
    )
    profile: str = _flag(
        "learned embedding of the relation counts of head and tail: none, added at the score, or both there "
        "and before the first layer (default: from the preset)",
        "model",
        choices=PROFILES,
    )
    links: bool = _flag(
        "add a learned term for the known relations of the pair to the scores (default: from the preset)",
        "model",
    )
    paths: bool = _flag(
        "add a learned term for the paths of two triples between the pair to the scores (default: from the "
        "preset)",
        "model",
        False,
    )
    mixing: bool = _flag(
        "add the context sums times a learned matrix in each layer (default: from the preset)", "model"
    )
    batch_size: int = _flag(
        "number of training triples per step (default: from the preset)",
        "optimisation",
        at_least=1,
        metavar="B",
    )
    lr: float = _flag(
        "learning rate (default: from the preset)", "optimisation", above=0, metavar="LR", common=True
    )
    lr_decay: float = _flag(
        "relative decay of the learning rate per epoch (default: from the preset)",
        "optimisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    l2: float = _flag(
        "coefficient C of L2 regularization: the loss gets C/2 times the sum of squares of both embedding "
        "tables (default: from the preset)",
        "optimisation",
        at_least=0,
        metavar="C",
    )
    negatives: int = _flag(
        "for --task entity: number of negative samples per step, in addition to the entities of the batch; "
        "0, or at least the number of entities, compares with all entities (default: from the preset)",
        "optimisation",
        0,
        at_least=0,
        metavar="K",
    )
    weight_average: float = _flag(
        "decay of the exponential moving average (EMA) of the weights; 0: no average (default: from the "
        "preset)",
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
        "number of epochs without a better validation MRR before early stopping (default: from the preset)",
        "optimisation",
        at_least=1,
        metavar="P",
        on_resume=True,
    )
    seed: int = _flag(
        "random seed of the run; --seeds trains one run per seed (default: 0)",
        "optimisation",
        0,
        at_least=0,
        below=2**63,
        metavar="S",
        common=True,
    )
    label_smoothing: float = _flag(
        "label smoothing: share of the target that is spread evenly over all answers (default: from the "
        "preset)",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    n3: float = _flag(
        "for --task entity: coefficient C of N3 regularization, the cubed moduli of the refined rows of "
        "head, relation and tail, averaged over triples (default: from the preset)",
        "regularisation",
        0.0,
        at_least=0,
        metavar="C",
    )
    input_dropout: float = _flag(
        "dropout rate of embedding values before the first layer (default: from the preset)",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    row_dropout: float = _flag(
        "dropout rate of whole entity rows before the first layer (default: from the preset)",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    unseen_rate: float = _flag(
        "share of training pairs with head or tail replaced by a learned unknown-entity embedding, which "
        "unseen entities use (default: from the preset)",
        "regularisation",
        at_least=0,
        below=1,
        metavar="P",
    )
    mask_targets: bool = _flag(
        "mask the batch's triples in the context to avoid label leakage (default: from the preset)",
        "regularisation",
    )
    ties: str = _flag(
        "tie policy of the ranks: mean, best or worst possible rank, or by relation id as in published "
        "results (default: realistic)",
        "running",
        "realistic",
        choices=TIES,
    )
    backend: str = _flag(
        "back end of the context layers (default: auto)",
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
        "run a training step as one CUDA graph, with the same results; auto: on a GPU (default: auto)",
        "running",
        "auto",
        choices=("auto", "on", "off"),
        on_resume=True,
        saved=False,
    )
    quiet: bool = _flag(
        "print only the test metrics (default: off)", "running", False, on_resume=True, saved=False
    )

    def __post_init__(self) -> None:
        for field, flag, kind in fields():
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if isinstance(value, np.generic):  # from a loop over `np.logspace`
                value = value.item()
                object.__setattr__(self, field.name, value)
            if kind == "float" and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            if type(value).__name__ != kind or not flag.accepts(value) or "\0" in str(value):
                raise InputError(f"{field.name}: expected {flag.wanted(kind, value)}, got {value!r}")

    @classmethod
    def from_json(cls, text: str) -> "TrainingConfig":
        """Read the output of `to_json`. Settings that a newer version added get their default.

        Raises:
            InputError: The text is not a JSON object, a field is unknown or missing, or a value is wrong.
        """
        values = parse_json(text)
        if not isinstance(values, dict):
            raise InputError(
                f"expected a JSON object with a field per flag, got a JSON {type(values).__name__}"
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
        """Keywords of `load_dataset` that locate and read the data set."""
        return {name: getattr(self, name) for name in ("data_dir", *READING)}

    @property
    def title(self) -> str:
        """Name of the model, with the score for LightCAKE."""
        return f"{self.model}-{self.score}" if "score" in MODELS[self.model].own else self.model

    def to_json(self) -> str:
        """Return the saved fields as a JSON object with one line per field."""
        return json.dumps(self.saved(), indent=2) + "\n"

    def saved(self) -> dict[str, Any]:
        """Return the fields that belong to the run."""
        return {field.name: getattr(self, field.name) for field, flag, _ in fields() if flag.saved}

    def fixed(self) -> dict[str, Any]:
        """Return the fields that are fixed for the whole run."""
        return {
            field.name: getattr(self, field.name)
            for field, flag, _ in fields()
            if flag.saved and not flag.on_resume
        }

    def anchored(self) -> "TrainingConfig":
        """Return a copy with absolute paths, so that the run can resume from any working directory."""
        dataset, data_dir = self.dataset, self.data_dir
        if dataset_key(dataset) is None:
            dataset = str(Path(dataset).expanduser().absolute())
        if data_dir is not None:
            data_dir = str(Path(data_dir).expanduser().absolute())
        return dataclasses.replace(self, dataset=dataset, data_dir=data_dir)


def fields() -> Iterator[tuple["dataclasses.Field[Any]", Flag, str]]:
    """Iterate over the fields of `TrainingConfig`, with flag and type name (`None` is ignored)."""
    hints = typing.get_type_hints(TrainingConfig)
    for field in dataclasses.fields(TrainingConfig):
        kind = next(iter(typing.get_args(hints[field.name])), hints[field.name])
        yield field, field.metadata["flag"], kind.__name__


def complete(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Add the default of each field that an older version did not save. Headers were triples then."""
    defaults = {f.name: f.default for f, _, _ in fields() if f.default is not MISSING}
    return defaults | {"header": False} | dict(saved)


def dataset_key(dataset: str) -> str | None:
    """Return the name of a data set with presets, or None for a folder of the user."""
    name = dataset.lower().partition(":")[0]
    return name if name == "family" or dataset.lower() in PUBLIC_DATASETS else None
