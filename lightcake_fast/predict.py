"""Relations from a trained model: `python -m lightcake_fast.predict RUN --head NAME --tail NAME`."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rich.progress import Progress

from lightcake_fast import cli
from lightcake_fast.errors import InputError
from lightcake_fast.inference.answers import Explanation, Prediction
from lightcake_fast.inference.arguments import add_run_arguments, open_run
from lightcake_fast.inference.figure import check_figure, draw
from lightcake_fast.inference.pairs import read_pairs
from lightcake_fast.inference.report import explanation_tables, prediction_table
from lightcake_fast.inference.trained import TrainedModel
from lightcake_fast.terminal import Console, json_line
from lightcake_fast.training.runtime import prepare_process

PAIRS_PER_BLOCK = 4096
COLUMNS = ("head", "tail", "rank", "relation", "probability", "note")
DESCRIPTION = "Predict the relation of a pair, or of many, with a trained model."
EPILOG = """\
examples:
  python -m lightcake_fast.predict runs/family --head "Hiro Bauer 370" --tail "Nils Ito 1026" --explain
  python -m lightcake_fast.predict runs/family --head "Hiro Bauer 370" --tail "Nils Ito 1026" --figure a.png
  python -m lightcake_fast.predict runs/family --pairs pairs.tsv --top 1 > relations.tsv
  cut -f 1,3 test.txt | python -m lightcake_fast.predict runs/family --pairs - --json > relations.jsonl

--pairs reads head<TAB>tail lines and writes a line for each pair and rank, or with --json for each pair.
A name that is not in the data is answered by the vectors that training with --unseen-rate learned.
"""


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.predict", DESCRIPTION, EPILOG)
    add_run_arguments(parser)
    parser.add_argument("--head", metavar="NAME", help="first entity, as in the data")
    parser.add_argument("--tail", metavar="NAME", help="second entity")
    parser.add_argument("--pairs", metavar="FILE", help="many pairs, from a file or - for stdin")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="relations, and triples of --explain")
    parser.add_argument(
        "--explain", action="store_true", help="show the context triples that the likeliest relation rests on"
    )
    parser.add_argument("--figure", metavar="FILE", type=Path, help="draw them: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each pair")
    return parser


def main(argv: Sequence[str]) -> None:
    """Predict.

    Raises:
        InputError: Flags, run folder, names or pairs are wrong.
    """
    options = make_parser().parse_args(argv)
    single = options.head is not None or options.tail is not None
    if single and (options.head is None or options.tail is None):
        raise InputError("got one of --head and --tail, wanted both")
    if single == (options.pairs is not None):
        raise InputError("wanted either --head and --tail, or --pairs")
    if options.pairs is not None and (options.explain or options.figure):
        raise InputError("--explain and --figure are for one pair: wanted --head and --tail")
    if options.figure is not None:
        check_figure(options.figure)
    trained = open_run(options.run, options)
    if single:
        _one(trained, options)
    else:
        _many(trained, options)


def _one(trained: TrainedModel, options: argparse.Namespace) -> None:
    (prediction,) = trained.predict([(options.head, options.tail)], options.top)
    explanation = None
    if options.explain or options.figure is not None:
        explanation = trained.explain(options.head, options.tail, options.top)
    if options.json:
        record = dataclasses.asdict(prediction)
        if explanation is not None:
            record["explanation"] = dataclasses.asdict(explanation)
        print(json_line(record))
    else:
        _print_answer(trained, prediction, explanation if options.explain else None)
    if options.figure is not None and explanation is not None:
        draw(explanation, options.figure)  # last: whatever becomes of the picture, the answer is there


def _print_answer(trained: TrainedModel, prediction: Prediction, explanation: Explanation | None) -> None:
    console = Console()
    console.print(f"{prediction.head} → {prediction.tail}", soft_wrap=True)
    console.print(prediction_table(prediction))
    for note in prediction.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for name in dict.fromkeys((prediction.head, prediction.tail)):
        near = trained.nearest(name) if name not in trained.graph.entities else []
        if near:
            console.print(f"names near {name!r}: {', '.join(map(repr, near))}", soft_wrap=True)
    if explanation is not None:
        console.print(f"{explanation.relation}: score {explanation.score:.4f}")
        console.print("share: of the score, gone without the triple; p without: the probability then")
        for table in explanation_tables(explanation):
            console.print(table)


def _many(trained: TrainedModel, options: argparse.Namespace) -> None:
    if options.pairs == "-" and sys.stdin is None:
        raise InputError("pairs: got a closed stdin, wanted head<TAB>tail lines")
    header = "" if options.json else "\t".join(COLUMNS) + "\n"
    name = "stdin" if options.pairs == "-" else options.pairs
    console = Console(stderr=True)
    with (
        nullcontext(sys.stdin.buffer) if options.pairs == "-" else Path(name).expanduser().open("rb") as file,
        # rich would send what is printed meanwhile to the bar's console, which is stderr
        Progress(
            console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False
        ) as progress,
    ):
        size = None if options.pairs == "-" else Path(name).expanduser().stat().st_size
        task = progress.add_task("pairs", total=size)
        pairs = _checked(trained, file, name)
        while block := list(islice(pairs, PAIRS_PER_BLOCK)):
            predictions = trained.predict(block, options.top)
            print(header, end="")  # not before there is a row: an error stands alone
            header = ""
            for prediction in predictions:
                print(_line(prediction, as_json=options.json))
            if size is not None:
                progress.update(task, completed=file.tell())
    print(header, end="")  # of a file without pairs


def _checked(trained: TrainedModel, file: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    """The pairs of a file; a name that cannot be answered is an error with its line."""
    for place, head, tail in read_pairs(file, name):
        try:
            trained.entity(head, "head")
            trained.entity(tail, "tail")
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        yield head, tail


def _line(prediction: Prediction, *, as_json: bool) -> str:
    if as_json:
        return json_line(dataclasses.asdict(prediction))
    head, tail, note = prediction.head, prediction.tail, "; ".join(prediction.notes)
    return "\n".join(
        f"{head}\t{tail}\t{rank}\t{candidate.relation}\t{candidate.probability:.6g}\t{note}"
        for rank, candidate in enumerate(prediction.relations, 1)
    )


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
