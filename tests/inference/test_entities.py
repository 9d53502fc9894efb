"""Entity prediction in Python and on the command line, compared with the scores of the model."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightcake_fast import TrainedModel, cli, evaluate, export, load
from lightcake_fast.errors import InputError
from lightcake_fast.predict import main
from tests.support.trained_runs import PAIR, train_run

ENTITIES = ("--task", "entity", "--unseen-rate", "0", "--no-relation-bias", "--layers", "2")
RELATION = "cousin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("entities")


@pytest.fixture(scope="module")
def run(folder: Path) -> str:
    return str(train_run(folder, *ENTITIES))


@pytest.fixture(scope="module")
def trained(run: str) -> TrainedModel:
    return load(run)


def probabilities(trained: TrainedModel, known: str, relation: int) -> torch.Tensor:
    """The DistMult softmax over all entities, computed only from exported embeddings."""
    table = trained.embeddings()
    rows = table.entities.double()
    point = rows[trained.data.entities.index(known)] * table.relations[relation].double()
    return (rows @ point).softmax(0)


@pytest.mark.parametrize("side", ["tail", "head"])
def test_answers_are_the_softmax_of_the_scores(trained: TrainedModel, side: str) -> None:
    data = trained.data
    r = data.relations.index(RELATION)
    asks_tail = side == "tail"
    question = (PAIR[0], RELATION, None) if asks_tail else (None, RELATION, PAIR[0])
    expected = probabilities(trained, PAIR[0], r if asks_tail else r + data.num_relations)
    (found,) = trained.predict_entities([question], top=data.num_entities + 3)
    assert (found.head, found.relation, found.tail, found.asked) == (*question, side)
    assert sorted(c.entity for c in found.entities) == sorted(data.entities)
    known = {tuple(triple) for triple in data.train.tolist()}
    entity = data.entities.index(PAIR[0])
    for candidate in found.entities:
        e = data.entities.index(candidate.entity)
        assert math.isclose(candidate.probability, expected[e].item(), rel_tol=1e-4)
        assert candidate.in_training == (((entity, r, e) if asks_tail else (e, r, entity)) in known)
    ordered = [candidate.probability for candidate in found.entities]
    assert ordered == sorted(ordered, reverse=True)
    assert trained.predict_entities([question])[0].entities == found.entities[:10]


def test_many_questions_give_the_same_answers_as_single_ones(
    trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained.data.entities[:7]
    questions = [(name, RELATION, None) for name in names] + [(None, "aunt", name) for name in names]
    monkeypatch.setattr("lightcake_fast.inference.entities.SCORES_PER_BLOCK", 3 * trained.data.num_entities)
    together = trained.predict_entities(questions, top=4)
    for question, found in zip(questions, together, strict=True):
        (alone,) = trained.predict_entities([question], top=4)
        assert [c.entity for c in found.entities] == [c.entity for c in alone.entities]
    frame = together.to_pandas()
    assert list(frame.columns[:5]) == ["head", "relation", "tail", "asked", "rank"]
    assert len(frame) == 4 * len(questions)
    again = trained.predict_entities(frame.iloc[:1, :3].assign(tail=np.nan), top=4)
    assert [c.entity for c in again[0].entities] == [c.entity for c in together[0].entities]
    assert trained.predict_entities([]) == []
    pd = pytest.importorskip("pandas")
    asked = pd.DataFrame([(*questions[0][:2], pd.NA)]).astype("string")
    found = trained.predict_entities(asked, top=4)[0]
    assert [c.entity for c in found.entities] == [c.entity for c in together[0].entities]


@pytest.mark.parametrize(
    "question",
    [
        (None, RELATION, None),
        (*PAIR[:1], RELATION, PAIR[1]),
        (None, None, PAIR[1]),
        (None, float("nan"), PAIR[1]),
    ],
)
def test_question_must_ask_for_one_entity(trained: TrainedModel, question: tuple[str | None, ...]) -> None:
    with pytest.raises(InputError, match="for either the head or the tail"):
        trained.predict_entities([question])


def test_unknown_names_are_rejected_with_suggestions(trained: TrainedModel) -> None:
    with pytest.raises(
        InputError, match=r"tail: expected .*, got 'Dmitri Novak 21': .*nearest names: 'Dmitri Novák 21'.*\)$"
    ):
        trained.predict_entities([(None, RELATION, "Dmitri Novak 21")])
    with pytest.raises(InputError, match=r"relation: expected a relation of .*, got 'cousine'"):
        trained.predict_entities([(PAIR[0], "cousine", None)])


def test_explanation_scores_without_each_triple(trained: TrainedModel) -> None:
    question = (PAIR[0], RELATION, None)
    (found,) = trained.predict_entities([question], top=1)
    explanation = trained.explain_entity(question, top=3)
    assert explanation.asked == "tail"
    assert explanation.likeliest == found.entities[0]
    assert (explanation.rank, explanation.tail) == (1, found.entities[0].entity)
    assert math.isclose(explanation.probability, found.entities[0].probability, rel_tol=1e-6)
    assert [context.of for context in explanation.contexts] == ["head", "tail", "relation"]
    data = trained.data
    for context in explanation.contexts:
        for triple in context.triples:
            h, r, t = (
                data.entities.index(triple.head),
                data.relations.index(triple.relation),
                data.entities.index(triple.tail),
            )
            mask = torch.from_numpy((data.train == [h, r, t]).all(1))
            assert mask.sum() == 1
            refined = trained._experiment.refined(mask)
            asked = torch.tensor([[data.entities.index(PAIR[0]), data.relations.index(RELATION)]])
            left = trained._experiment.entity_scores(refined, asked)[0]
            answer = data.entities.index(explanation.tail)
            assert math.isclose(triple.score_without, left[answer].item(), rel_tol=1e-4, abs_tol=1e-7)


def test_explanation_of_another_entity(trained: TrainedModel) -> None:
    question = (None, RELATION, PAIR[1])
    (found,) = trained.predict_entities([question], top=3)
    explanation = trained.explain_entity(question, top=1, answer=found.entities[2].entity)
    assert (explanation.head, explanation.rank, explanation.asked) == (found.entities[2].entity, 3, "head")
    assert explanation.likeliest == found.entities[0]
    inverse = trained.data.relations.index(RELATION) + trained.data.num_relations
    of_relation = explanation.contexts[2]
    count = int((trained.data.train[:, 1] == inverse - trained.data.num_relations).sum())
    assert of_relation.size == count


def test_explanation_notes_untrained_entities(trained: TrainedModel) -> None:
    entities = trained.data.entities
    unseen = entities[int((~trained.data.seen_entities).argmax())]
    told = f"{unseen!r} has no training triple: its embedding was never trained"
    explanation = trained.explain_entity((PAIR[0], RELATION, None), answer=unseen)
    assert explanation.notes == (f"tail {told}",)
    assert trained.explain_entity((unseen, RELATION, None), answer=PAIR[0]).notes == (f"head {told}",)
    assert trained.explain_entity((PAIR[0], RELATION, None)).notes == ()


def test_question_and_explanation_print_as_tables(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([run, "--head", PAIR[0], "--relation", RELATION, "--top", "3", "--explain"])
    out = capsys.readouterr().out
    assert f"{PAIR[0]} — {RELATION} → ?" in out
    assert "in training" in out
    assert "context of head" in out
    assert "rank 1" in out


def test_two_entities_explain_the_tail(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--head",
        PAIR[0],
        "--relation",
        RELATION,
        "--tail",
        PAIR[1],
        "--explain",
        "--json",
        "--top",
        "2",
    ]
    main([run, *flags])
    record = json.loads(capsys.readouterr().out)
    assert len(record["entities"]) == 2
    assert record["explanation"]["tail"] == PAIR[1]
    assert record["explanation"]["asked"] == "tail"


def test_questions_from_a_file(
    run: str, trained: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "questions.tsv"
    file.write_text(f"{PAIR[0]}\t{RELATION}\t?\n?\taunt\t{PAIR[1]}\n", encoding="utf-8")
    main([run, "--questions", str(file), "--top", "2"])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "head\trelation\ttail\tasked\trank\tprobability\tin_training\tnote"
    found = trained.predict_entities([(PAIR[0], RELATION, None), (None, "aunt", PAIR[1])], top=2)
    for line, (*triple, asked, rank, probability, known, note) in zip(lines, found.rows(), strict=True):
        assert line.split("\t") == [
            *triple,
            asked,
            str(rank),
            f"{probability:.6g}",
            "yes" if known else "no",
            note,
        ]
    for line in (f"?\t?\t{PAIR[1]}\n", f"{PAIR[0]}\t?\t?\n"):
        file.write_text(line, encoding="utf-8")
        assert cli.run(main, [run, "--questions", str(file)]) == 2
        assert f"{file}:1: questions: expected None (? in a file)" in capsys.readouterr().err
    file.write_text(f"{PAIR[0]}\t{RELATION}\t?\n?\taunt\t{PAIR[1]}\n", encoding="utf-8")
    main([run, "--questions", str(file), "--json"])
    assert len(json.loads(capsys.readouterr().out.splitlines()[1])["entities"]) == 10


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--head", PAIR[0]],
            "expected --head and --tail, got one of them: add the other, or add --relation to predict it",
        ),
        (
            ["--head", PAIR[0], "--tail", PAIR[1]],
            "expected a run that ranks relations, got one that ranks entities",
        ),
        (["--pairs", "-"], "expected a run that ranks relations, got one that ranks entities"),
        (["--head", PAIR[0], "--relation", RELATION, "--pairs", "-"], "got none or several: use one of them"),
        (
            ["--questions", "-", "--explain"],
            "--explain and --figure: expected one pair or question, got a file",
        ),
    ],
)
def test_wrong_flags_are_rejected_for_an_entity_run(
    run: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(main, [run, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_relation_run_rejects_entity_questions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train_run(folder, "--layers", "0")
    for flags in (["--head", PAIR[0], "--relation", RELATION], ["--questions", "-"]):
        assert cli.run(main, [str(path), *flags]) == 2
        error = capsys.readouterr().err
        assert (
            "expected a run that ranks entities, got one that ranks relations: train with --task entity"
            in error
        )
        assert error.count("\n") == 1


def test_figure_of_an_entity_prediction(run: str, tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    file = tmp_path / "why.svg"
    main([run, "--tail", PAIR[0], "--relation", RELATION, "--top", "2", "--figure", str(file)])
    assert file.stat().st_size > 1000


def test_evaluation_and_export_of_an_entity_run(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate.main([run, "--by", "relation", "--json"])
    record = json.loads(capsys.readouterr().out)
    results = json.loads((Path(run) / "results.json").read_text())
    assert record["all"] == results["test"]["all"]
    assert sum(group["count"] for group in record["by"]["relation"]) == results["test"]["all"]["count"]
    export.main([run, "--to", str(tmp_path / "rows")])
    entities = np.load(tmp_path / "rows" / "entities.npy")
    assert len(entities) == len((Path(run) / "entities.tsv").read_text(encoding="utf-8").splitlines())
