"""Refined embeddings for other programs: `python -m lightcake_fast.export RUN --to FILE.safetensors`."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from lightcake_fast import cli
from lightcake_fast.data import id_map
from lightcake_fast.errors import InputError
from lightcake_fast.files import TEMPORARY, replace_tensors
from lightcake_fast.inference.answers import Embeddings
from lightcake_fast.inference.arguments import add_run_arguments, open_run
from lightcake_fast.process import prepare_process

SUFFIX = ".safetensors"
DESCRIPTION = "Write the refined embeddings of a trained model, with the names of their rows."
EPILOG = """\
examples:
  python -m lightcake_fast.export runs/family --to family.safetensors    one file, names in its header
  python -m lightcake_fast.export runs/family --to family                a folder of .npy and .tsv files

Row i of `entities` is entity i, row r of `relations` is relation r and, in a model with context, row R + r
its inverse. docs/getting-started.md shows how to read both forms.
"""


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.export", DESCRIPTION, EPILOG)
    add_run_arguments(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="PATH",
        type=Path,
        help=f"a new file, NAME{SUFFIX}, or a new folder",
    )
    return parser


def main(argv: Sequence[str]) -> None:
    """Export.

    Raises:
        InputError: The run folder is wrong, or there is something where the export shall go.
    """
    options = make_parser().parse_args(argv)
    target = options.to.expanduser()
    if target.exists():
        raise InputError(f"{target}: exists, wanted a new file or folder")
    embeddings = open_run(options.run, options).embeddings()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == SUFFIX:
        _write_file(embeddings, target)
    else:
        _write_folder(embeddings, target)
    rows = f"{len(embeddings.entities):,} entities and {len(embeddings.relations):,} relation rows"
    print(f"{target}: {rows} of width {embeddings.entities.shape[1]}")


def _tensors(embeddings: Embeddings) -> dict[str, Tensor]:
    tables = {name: getattr(embeddings, name) for name in ("entities", "relations", "seen")}
    return {name: tensor.contiguous() for name, tensor in {**tables, **embeddings.others}.items()}


def _write_file(embeddings: Embeddings, target: Path) -> None:
    names = {"entities": embeddings.entity_names, "relations": embeddings.relation_names}
    header = {key: json.dumps(value, ensure_ascii=False) for key, value in names.items()}
    replace_tensors(target, _tensors(embeddings), header)


def _write_folder(embeddings: Embeddings, target: Path) -> None:
    # the folder appears whole, or what there is of it goes
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=TEMPORARY, dir=target.parent) as place:
        staging = Path(place) / target.name
        staging.mkdir()
        for name, tensor in _tensors(embeddings).items():
            np.save(staging / f"{name}.npy", tensor.numpy(), allow_pickle=False)
        for name, names in (("entities", embeddings.entity_names), ("relations", embeddings.relation_names)):
            (staging / f"{name}.tsv").write_text(id_map(names), encoding="utf-8", newline="")
        staging.rename(target)


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
