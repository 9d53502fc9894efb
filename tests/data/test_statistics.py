import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightcake_fast.cli import ArgumentParser, run
from lightcake_fast.data import KnowledgeGraph, load_dataset
from lightcake_fast.data.__main__ import main
from lightcake_fast.data.statistics import compute_statistics
from lightcake_fast.errors import InputError


def rows(*triples: tuple[int, int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(triples, dtype=np.int64).reshape(len(triples), 3)


def test_statistics_match_hand_counted_values() -> None:
    graph = KnowledgeGraph(
        "hand",
        tuple("abcde"),
        ("r", "s"),
        train=rows((0, 0, 1), (0, 0, 2), (0, 1, 2), (3, 0, 0)),
        valid=rows((4, 0, 1)),
        test=rows((0, 1, 1), (2, 0, 0), (0, 0, 2), (4, 1, 4), (1, 0, 3)),
        duplicates={"train": 2, "valid": 0, "test": 1},
    )
    figures = compute_statistics(graph)
    assert (figures.entities, figures.relations) == (5, 2)
    assert figures.triples == {"train": 4, "valid": 1, "test": 5}
    assert figures.duplicates == {"train": 2, "valid": 0, "test": 1}
    assert figures.mean_entity_context == 8 / 5
    assert figures.mean_relation_context == 2
    assert figures.median_entity_context == 1
    assert figures.largest_entity_context == 4
    assert figures.largest_relation_share == 0.75
    assert figures.three_largest_relations_share == 1
    assert figures.unseen_entities == 1
    assert (figures.valid_triples_with_unseen, figures.test_triples_with_unseen) == (1, 1)
    assert figures.test_pairs_in_train == 2
    assert figures.test_pairs_in_train_reversed == 1
    assert figures.test_triples_in_train == 1


def test_statistics_of_a_graph_with_more_than_2_63_possible_triples() -> None:
    size = 2**21 + 1  # number of entities and of relations: the product of all three sizes is above 2^63
    last = size - 1
    graph = KnowledgeGraph(
        "large",
        ("e",) * size,
        ("r",) * size,
        train=rows((last, last, last), (last, 0, last), (0, last, last), (0, 1, 2)),
        valid=rows((0, 0, 0)),
        test=rows((last, last, last), (last, 1, last), (0, last, last), (2, 1, 0), (1, 1, 1)),
    )
    figures = compute_statistics(graph)
    assert (figures.entities, figures.relations) == (size, size)
    assert figures.test_pairs_in_train == 3
    assert figures.test_pairs_in_train_reversed == 3
    assert figures.test_triples_in_train == 2


@pytest.mark.parametrize(
    ("name", "sizes", "contexts", "unseen"),
    [
        ("fb15k-237", (14_541, 237, 272_115, 17_535, 20_466), (37.4, 1148.2), (36, 28)),
        ("wn18rr", (40_943, 11, 86_835, 3_034, 3_134), (4.2, 7894.1), (384, 210)),
        ("nell995", (63_917, 198, 137_465, 5_000, 5_000), (4.3, 694.3), (2_186, 1_036)),
        ("ddb14", (9_203, 14, 36_561, 4_000, 4_000), (7.9, 2611.5), (146, 118)),
    ],
)
def test_statistics_of_the_public_data_sets(
    name: str,
    sizes: tuple[int, ...],
    contexts: tuple[float, float],
    unseen: tuple[int, int],
    public_data: Callable[[str], Path],
) -> None:
    """Sizes and contexts are from the paper, with its swapped valid and test columns put right."""
    figures = compute_statistics(load_dataset(name, public_data(name).parent))
    assert (figures.entities, figures.relations, *figures.triples.values()) == sizes
    assert (round(figures.mean_entity_context, 1), round(figures.mean_relation_context, 1)) == contexts
    assert (figures.unseen_entities, figures.test_triples_with_unseen) == unseen
    assert set(figures.duplicates.values()) == {0}


def test_nell995_without_id_files_has_unseen_entities(
    tmp_path: Path, public_data: Callable[[str], Path]
) -> None:
    source = public_data("nell995")
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").symlink_to(source / f"{split}.txt")
    figures = compute_statistics(load_dataset(str(tmp_path)))
    assert (figures.entities, figures.unseen_entities) == (63_917, 2_186)


def test_statistics_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["family:100"]) == 0
    lines = (line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line)
    shown = {label.strip(): value.strip() for _, label, value, _ in lines}
    figures = compute_statistics(load_dataset("family:100"))
    assert shown["entities"] == "100"
    assert shown["train triples"] == f"{figures.triples['train']}"
    assert shown["mean entity context |C_ent| (with inverses)"] == f"{figures.mean_entity_context:.1f}"
    assert shown["mean relation context |C_rel| (raw direction)"] == f"{figures.mean_relation_context:.1f}"
    assert shown["test pairs seen in training"] == "0 (0.0%)"
    assert shown["duplicates dropped (train / valid / test)"] == "0 / 0 / 0"


def test_statistics_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["family:100", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["entities"] == 100
    assert figures["fingerprint"] == load_dataset("family:100").fingerprint


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["nowhere"],
            "error: dataset: expected one of family, fb15k-237, wn18rr, nell995, ddb14, or the path",
        ),
        ([], "error: the following arguments are required: DATASET"),
        (["family", "--jsom"], "error: unrecognized arguments: --jsom"),
        (["family", "--js"], "error: unrecognized arguments: --js"),
        (["family:3"], "error: family: expected at least 20 people, got 3"),
        (["ddb14", "--data-dir", "/nowhere"], "error: /nowhere: expected a folder of data sets"),
    ],
)
def test_input_errors_print_one_line_and_exit_with_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(main, arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(expected)
    assert printed.err.count("\n") == 1


def test_message_gives_file_and_line(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a\tr\tb\n")
    (tmp_path / "test.txt").write_text("a\tr\tb\na r b\n")
    command = [sys.executable, "-m", "lightcake_fast.data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted = (
        f"error: {tmp_path}/test.txt:2: expected head<TAB>relation<TAB>tail, got 1 field: correct the line\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["family:3", "--debug"]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.splitlines()[-1] == "error: family: expected at least 20 people, got 3: use more people"


def test_exit_codes_and_messages_of_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    def raises(error: BaseException) -> Callable[[object], int]:
        def command(_: object) -> int:
            raise error

        return command

    assert run(raises(InputError("first\nsecond")), []) == 2
    assert capsys.readouterr().err == "error: first second\n"
    assert run(raises(PermissionError(13, "Permission denied", "/root/x")), []) == 2
    assert capsys.readouterr().err == "error: /root/x: Permission denied\n"
    assert run(raises(OSError(errno.ENOSPC, "No space left on device")), []) == 1
    assert capsys.readouterr().err == "error: No space left on device\n"
    assert run(raises(MemoryError()), []) == 1
    assert capsys.readouterr().err == "error: out of memory: needed more memory than is available\n"
    assert run(raises(KeyboardInterrupt()), []) == 130
    with pytest.raises(ZeroDivisionError):
        run(raises(ZeroDivisionError()), [])
    assert run(lambda _: 7, []) == 7
    assert run(lambda _: None, []) == 0


def test_help_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(main, ["--help"])
    assert caught.value.code == 0
    assert "--data-dir" in capsys.readouterr().out


def test_wrong_flag_value_is_an_input_error() -> None:
    parser = ArgumentParser("tool", "A tool.")
    parser.add_argument("--layers", type=int)
    with pytest.raises(InputError, match=r"--layers: invalid int value: 'two' \(see tool --help\)"):
        parser.parse_args(["--layers", "two"])


def test_closed_stdout_pipe_exits_with_141() -> None:
    command = [sys.executable, "-m", "lightcake_fast.data", "family:100", "--json"]
    reader, writer = os.pipe()
    os.close(reader)  # before the command can print
    with os.fdopen(writer) as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
