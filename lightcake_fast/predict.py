"""Predict with a trained model: `python -m lightcake_fast.predict RUN --head NAME --tail NAME`."""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rich.progress import Progress

from lightcake_fast import cli
from lightcake_fast.errors import InputError
from lightcake_fast.inference.answers import (
    EntityPrediction,
    EntityPredictions,
    Explanation,
    Prediction,
    Predictions,
    TripleScores,
)
from lightcake_fast.inference.arguments import add_run_arguments, open_run
from lightcake_fast.inference.figure import check_figure, draw
from lightcake_fast.inference.pairs import FIELDS, read_rows
from lightcake_fast.inference.report import entity_table, explanation_tables, prediction_table
from lightcake_fast.inference.trained import TrainedModel
from lightcake_fast.process import prepare_process
from lightcake_fast.terminal import Console, json_line, shown_on

ROWS_PER_BLOCK = 4096
COLUMNS = {
    "pairs": Predictions.columns,
    "triples": TripleScores.columns,
    "questions": EntityPredictions.columns,
}
ASKED = "?"  # marks the missing entity in a file of questions
TOP = {"relation": 5, "entity": 10}  # default number of answers
DESCRIPTION = "Predict relations of pairs, predict entities, or score triples with a trained model."
EPILOG = """\
examples:
  python -m lightcake_fast.predict runs/family --head "Hiro Bauer 370" --tail "Nils Ito 1026" --explain
  python -m lightcake_fast.predict runs/family --head "Hiro Bauer 370" --tail "Nils Ito 1026" --figure a.png
  python -m lightcake_fast.predict runs/family --pairs pairs.tsv --top 1 > relations.tsv
  python -m lightcake_fast.predict runs/family --head A --tail B --relation aunt --explain    why not aunt?
  cut -f 1,3 test.txt | python -m lightcake_fast.predict runs/family --pairs - --json > relations.jsonl
  python -m lightcake_fast.predict runs/family --triples test.txt > scores.tsv
with a run that was trained with --task entity:
  python -m lightcake_fast.predict runs/who --head "Hiro Bauer 370" --relation aunt          whose aunt?
  python -m lightcake_fast.predict runs/who --tail "Nils Ito 1026" --relation aunt --explain
  python -m lightcake_fast.predict runs/who --head A --relation aunt --tail B --explain      why not B?
  python -m lightcake_fast.predict runs/who --questions questions.tsv > answers.tsv

A probability assumes that exactly one relation holds for the pair. The probabilities of all relations sum to
one. They do not say whether any relation holds. `in training` marks triples of the training split.
--pairs reads head<TAB>tail lines. It writes one line per pair and rank, or with --json one line per pair.
--triples reads head<TAB>relation<TAB>tail lines. It writes each triple with score, probability and rank.
--questions reads such lines with ? for the head or the tail. It writes one line per answer.
Unknown entities use the learned unknown-entity embedding (see --unseen-rate).
"""


def make_parser() -> cli.ArgumentParser:
    """Make the command's parser."""
    parser = cli.ArgumentParser("python -m lightcake_fast.predict", DESCRIPTION, EPILOG)
    add_run_arguments(parser)
    parser.add_argument("--head", metavar="NAME", help="name of the head")
    parser.add_argument("--tail", metavar="NAME", help="name of the tail")
    parser.add_argument("--pairs", metavar="FILE", help="file with pairs, or - for stdin")
    parser.add_argument("--triples", metavar="FILE", help="file with triples to score, or - for stdin")
    parser.add_argument(
        "--questions", metavar="FILE", help="file with questions, ? for the missing entity, or - for stdin"
    )
    parser.add_argument(
        "--top",
        type=int,
        metavar="K",
        help="number of answers and of context triples (default: 5, entities 10)",
    )
    parser.add_argument(
        "--explain", action="store_true", help="show the context triples that explain the answer"
    )
    parser.add_argument(
        "--relation",
        metavar="NAME",
        help="relation to explain (default: the likeliest), or the relation of a question for an entity",
    )
    parser.add_argument(
        "--figure", metavar="FILE", type=Path, help="file for a figure of the explanation: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON line per pair, triple or question (default: tables, TSV)",
    )
    return parser


def main(argv: Sequence[str]) -> None:
    """Predict or score, and print the answers.

    Raises:
        InputError: The flags, the run folder, a name or a file is wrong.
    """
    options = make_parser().parse_args(argv)
    given = [name is not None for name in (options.head, options.tail)]
    asks = any(given) and not all(given)
    if asks and options.relation is None:
        raise InputError(
            "expected --head and --tail, got one of them: add the other, or add --relation to predict it"
        )
    if any(given) + sum(getattr(options, kind) is not None for kind in COLUMNS) != 1:
        raise InputError(
            "expected --head and --tail, or --pairs, or --triples, or --questions, got none or several: "
            "use one of them"
        )
    explains = options.explain or options.figure is not None
    if explains and not any(given):
        raise InputError(
            "--explain and --figure: expected one pair or question, got a file: use --head, --tail"
        )
    if options.relation is not None and not explains and not asks:
        raise InputError("--relation: expected --explain or --figure, got neither: add one of them")
    if options.figure is not None:
        check_figure(options.figure)
    trained = open_run(options.run, options)
    options.top = TOP[trained.config.task] if options.top is None else options.top
    if asks or (any(given) and trained.config.task == "entity" and options.relation is not None):
        _one_entity(trained, options)
    elif any(given):
        _one(trained, options)
    else:
        _many(trained, options)


def _one(trained: TrainedModel, options: argparse.Namespace) -> None:
    (prediction,) = trained.predict([(options.head, options.tail)], options.top)
    explanation = None
    if options.explain or options.figure is not None:
        explanation = trained.explain(options.head, options.tail, options.top, relation=options.relation)
    _show(trained, options, prediction, explanation)


def _one_entity(trained: TrainedModel, options: argparse.Namespace) -> None:
    """Predict the missing head or tail. If both are given, the tail is the answer to explain."""
    answer = options.tail if options.head is not None else None
    question = (options.head, options.relation, options.tail if options.head is None else None)
    (prediction,) = trained.predict_entities([question], options.top)
    explanation = None
    if options.explain or options.figure is not None:
        explanation = trained.explain_entity(question, options.top, answer=answer)
    _show(trained, options, prediction, explanation)


def _show(
    trained: TrainedModel,
    options: argparse.Namespace,
    prediction: Prediction | EntityPrediction,
    explanation: Explanation | None,
) -> None:
    if options.json:
        record = dataclasses.asdict(prediction)
        if explanation is not None:
            record["explanation"] = dataclasses.asdict(explanation)
        print(json_line(record))
    else:
        _print_answer(trained, prediction, explanation if options.explain else None)
    if options.figure is not None and explanation is not None:
        # drawn last: an error in drawing does not hide the answer
        missing = draw(explanation, options.figure)
        if missing:
            print(
                f"figure: no installed font has {missing!r}: boxes replace these characters", file=sys.stderr
            )


def _print_answer(
    trained: TrainedModel, prediction: Prediction | EntityPrediction, explanation: Explanation | None
) -> None:
    console = Console()
    if isinstance(prediction, EntityPrediction):
        head, relation, tail = prediction.triple("?")
        console.print_table(f"{head} — {relation} → {tail}", entity_table(prediction))
    else:
        console.print_table(f"{prediction.head} → {prediction.tail}", prediction_table(prediction))
    for note in prediction.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for name in filter(None, dict.fromkeys((prediction.head, prediction.tail))):
        near = trained.nearest(name) if name not in trained.data.entities else []
        if near:
            console.print(f"names near {name!r}: {', '.join(map(repr, near))}", soft_wrap=True)
    if explanation is not None:
        console.print(
            f"{getattr(explanation, explanation.asked)}: score {explanation.score:.4f}, probability "
            f"{explanation.probability:.4f}, rank {explanation.rank}",
            soft_wrap=True,
        )
        console.print("share: relative loss of score without the part; p without: probability without it")
        for title, table in explanation_tables(explanation, console.width):
            console.print_table(title, table)


def _many(trained: TrainedModel, options: argparse.Namespace) -> None:
    kind = next(kind for kind in COLUMNS if getattr(options, kind) is not None)
    trained.check_task("entity" if kind == "questions" else "relation")
    given = getattr(options, kind)
    if given == "-" and sys.stdin is None:
        raise InputError(
            f"{kind}: expected lines of {', '.join(FIELDS[kind])}, got a closed stdin: use a file"
        )
    header = "" if options.json else "\t".join(COLUMNS[kind]) + "\n"
    name = "stdin" if given == "-" else given
    console = Console(stderr=True)
    # without redirect_stdout=False, rich prints the answers to the bar's console: stderr
    progress = Progress(console=console, transient=True, redirect_stdout=False)
    with (
        nullcontext(sys.stdin.buffer) if given == "-" else Path(name).expanduser().open("rb") as file,
        shown_on(console, progress),
    ):
        size = None if given == "-" else Path(name).expanduser().stat().st_size
        task = progress.add_task(kind, total=size)
        rows = _checked(trained, file, name, kind)
        while block := list(islice(rows, ROWS_PER_BLOCK)):
            answers = _answers(trained, block, kind, options.top)
            # printed after the first row is read, so that an early error prints no header
            print(header, end="")
            header = ""
            if options.json:
                lines = (json_line(dataclasses.asdict(answer)) for answer in answers)
            else:
                lines = ("\t".join(map(_cell, row)) for row in answers.rows())
            for line in lines:
                print(line)
            if size is not None:
                progress.update(task, completed=file.tell())
    print(header, end="")  # a file without rows still gets a header


def _answers(
    trained: TrainedModel, rows: Iterable[list[str]], kind: str, top: int
) -> Predictions | TripleScores | EntityPredictions:
    if kind == "questions":
        return trained.predict_entities(map(_question, rows), top)
    return trained.score(rows) if kind == "triples" else trained.predict(rows, top)


def _checked(trained: TrainedModel, file: BinaryIO, name: str, kind: str) -> Iterator[list[str]]:
    """Yield the rows of a file; errors about names give the line."""
    for place, names in read_rows(file, name, kind):
        try:
            if kind == "questions":
                trained.question(_question(names))
            else:
                trained.entity(names[0], "head")
                trained.entity(names[-1], "tail")
                for relation in names[1:-1]:
                    trained.relation(relation)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        yield names


def _question(names: list[str]) -> list[str | None]:
    return [None if name == ASKED else name for name in names]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
