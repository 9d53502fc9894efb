"""Trained models: answers compared with the metrics of training and with independent calculations."""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast import LightCAKE, TrainedModel, cli, evaluate, load
from lightcake_fast.data import load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.inference import Explanation
from lightcake_fast.reference import layer as reference
from lightcake_fast.training.checkpoint import load_checkpoint, save_checkpoint
from lightcake_fast.training.run_folder import RunFolder
from tests.support.comparison import assert_bitwise_equal, assert_close
from tests.support.surroundings import SURROUNDINGS
from tests.support.trained_runs import PAIR, UNSEEN, train_run

LAYERS = ("--layers", "2")
BEST = "best.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def trained(folder: Path) -> TrainedModel:
    return load(train_run(folder, *LAYERS))


@pytest.fixture(scope="module")
def plain(folder: Path) -> TrainedModel:
    """A model without unknown-entity embeddings."""
    return load(str(train_run(folder, *LAYERS, "--unseen-rate", "0")))


def scores_by_hand(trained: TrainedModel, triples: np.ndarray, pair: tuple[int, int]) -> Tensor:
    """Scores `[R]` of a seen pair in float64, only from the tables and the reference layer."""
    model = trained.model
    assert isinstance(model, LightCAKE)
    graph = ContextGraph.from_triples(triples, trained.data.num_entities, trained.data.num_relations)
    entities, relations = model.entities.detach().double(), model.relations.detach().double()
    for _ in range(model.layers):
        entities, relations = reference.context_layer(
            entities, relations, graph.context_triples, None, model.score, model.context
        )
    raw = relations[: trained.data.num_relations]
    scores = (entities[pair[0]] * raw * entities[pair[1]]).sum(1)
    return scores if model.relation_bias is None else scores + model.relation_bias.detach().double()


@pytest.mark.parametrize(
    "flags",
    [
        LAYERS,
        ("--score", "transe", "--context", "entity"),
        ("--layers", "0"),
        ("--model", "a2n"),
        ("--model", "compgcn", "--composition", "corr", "--backend", "auto"),
        ("--profile", "both", "--links", "--mixing"),
    ],
)
def test_evaluation_is_bitwise_equal_to_training(folder: Path, flags: tuple[str, ...]) -> None:
    path = train_run(folder, *flags)
    trained = load(path)
    results = json.loads((path / "results.json").read_text())
    for split in ("valid", "test"):
        assert trained.evaluate(split).to_dict() == results[split]


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_answers_do_not_depend_on_the_callers_settings(
    name: str, trained: TrainedModel, explanation: Explanation, folder: Path
) -> None:
    run = train_run(folder, *LAYERS)
    expected = trained.predict([PAIR]), trained.score([(PAIR[0], "wife", PAIR[1])]), trained.evaluate("test")
    with SURROUNDINGS[name]():
        model = load(run)
        found = model.predict([PAIR]), model.score([(PAIR[0], "wife", PAIR[1])]), model.evaluate("test")
        again = model.explain(*PAIR, top=10_000)
        embeddings = model.embeddings()
    assert found == expected
    assert again == explanation
    assert_bitwise_equal(embeddings.entities, trained.embeddings().entities)


def test_tie_policy_changes_ranks(trained: TrainedModel) -> None:
    ranks = {ties: trained.ranks("test", ties).mean() for ties in ("optimistic", "pessimistic")}
    assert ranks["optimistic"] <= trained.ranks("test").mean() <= ranks["pessimistic"]


def test_predictions_are_the_softmax_of_the_scores(trained: TrainedModel) -> None:
    graph = trained.data
    ids = graph.entities.index(PAIR[0]), graph.entities.index(PAIR[1])
    expected = scores_by_hand(trained, graph.train, ids).softmax(0)
    (found,) = trained.predict([PAIR], top=graph.num_relations + 5)
    assert (found.head, found.tail, found.notes) == (*PAIR, ())
    order = [graph.relations.index(candidate.relation) for candidate in found.relations]
    assert order == expected.argsort(descending=True).tolist()
    probabilities = torch.tensor([candidate.probability for candidate in found.relations])
    assert_close(probabilities, expected[order], slack=10)
    assert math.isclose(probabilities.sum(), 1, rel_tol=1e-5)
    assert trained.predict([PAIR], top=2)[0].relations == found.relations[:2]


def test_many_pairs_give_the_same_answers_as_single_ones(trained: TrainedModel) -> None:
    entities = trained.data.entities
    pairs = [*pairwise(entities[:20]), ("no such", PAIR[1]), (UNSEEN, UNSEEN)]
    for pair, prediction in zip(pairs, trained.predict(iter(pairs)), strict=True):
        (alone,) = trained.predict([pair])
        assert [c.relation for c in prediction.relations] == [c.relation for c in alone.relations]
        for ours, theirs in zip(prediction.relations, alone.relations, strict=True):
            assert math.isclose(ours.probability, theirs.probability, rel_tol=1e-4)
    assert trained.predict([]) == []


def test_pairs_are_scored_in_blocks(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    entities, relation = trained.data.entities, trained.data.relations[0]
    pairs = [*pairwise(entities[:12])]
    triples = [(head, relation, tail) for head, tail in pairs]
    whole = trained.predict(pairs), trained.score(triples)
    monkeypatch.setattr("lightcake_fast.metrics.PAIRS_PER_BLOCK", 3)
    sizes: list[int] = []
    scores = trained._pair_scores

    def counted(ids: list[list[int]]) -> torch.Tensor:
        sizes.append(len(ids))
        return scores(ids)

    monkeypatch.setattr(trained, "_pair_scores", counted)
    blocks = trained.predict(pairs), trained.score(triples)
    assert sizes == 2 * [3, 3, 3, 2]
    for one, other in zip(blocks[0], whole[0], strict=True):
        assert [c.relation for c in one.relations] == [c.relation for c in other.relations]
        assert (one.head, one.tail, one.notes) == (other.head, other.tail, other.notes)
    for a, b in zip(blocks[1], whole[1], strict=True):
        assert (a.head, a.relation, a.tail, a.rank, a.in_training) == (
            *(b.head, b.relation, b.tail),
            *(b.rank, b.in_training),
        )
        assert math.isclose(a.probability, b.probability, rel_tol=1e-4)


@pytest.mark.parametrize("name", [UNSEEN, "no such name"])
def test_unknown_entities_use_the_learned_embeddings(trained: TrainedModel, name: str) -> None:
    model, tail = trained.model, trained.data.entities.index(PAIR[1])
    assert model.unknown_head is not None
    assert model.relation_bias is not None
    table = trained.embeddings()
    raw = table.relations[: trained.data.num_relations]
    scores = (model.unknown_head.detach() * raw * table.entities[tail]).sum(1) + model.relation_bias.detach()
    (found,) = trained.predict([(name, PAIR[1])], top=trained.data.num_relations)
    for candidate in found.relations:
        expected = scores.softmax(0)[trained.data.relations.index(candidate.relation)].item()
        assert math.isclose(candidate.probability, expected, rel_tol=1e-4)
    (note,) = found.notes
    assert note.startswith(f"head {name!r} ")
    assert note.endswith("the learned embedding of unknown heads is used")


def test_unknown_names_are_rejected_without_learned_embeddings(plain: TrainedModel) -> None:
    with pytest.raises(
        InputError, match=r"tail: expected .*, got 'Dmitri Novak 21'.*nearest names: 'Dmitri Novák 21'"
    ):
        plain.predict([(PAIR[0], "Dmitri Novak 21")])
    with pytest.raises(InputError, match=r"head: expected .*, got '%%%'.*no similar names"):
        plain.predict([("%%%", PAIR[1])])
    (found,) = plain.predict([(UNSEEN, PAIR[1])])
    assert found.notes == (f"head {UNSEEN!r} has no training triple: its embedding was never trained",)


@pytest.mark.parametrize("top", [0, -1])
def test_top_must_be_at_least_1(trained: TrainedModel, top: int) -> None:
    with pytest.raises(InputError, match=f"top: expected at least 1, got {top}"):
        trained.predict([PAIR], top=top)
    with pytest.raises(InputError, match=f"top: expected at least 1, got {top}"):
        trained.explain(*PAIR, top=top)


@pytest.fixture(scope="module")
def explanation(trained: TrainedModel) -> Explanation:
    return trained.explain(*PAIR, top=10_000)


def test_weights_of_a_context_sum_to_one_in_each_layer(
    trained: TrainedModel, explanation: Explanation
) -> None:
    train, graph = trained.data.train, trained.data
    assert [context.of for context in explanation.contexts] == ["head", "tail", "relation"]
    for context in explanation.contexts:
        if context.of == "relation":
            members = train[train[:, 1] == graph.relations.index(context.name)]
        else:
            end = graph.entities.index(context.name)
            members = train[(train[:, 0] == end) | (train[:, 2] == end)]
        names = {(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in members}
        assert {(t.head, t.relation, t.tail) for t in context.triples} == names
        assert context.size == len(context.triples) == len(members) > 1
        for layer in range(2):
            assert math.isclose(sum(t.weights[layer] for t in context.triples), 1, rel_tol=1e-5)
        means = [sum(triple.weights) for triple in context.triples]
        assert means == sorted(means, reverse=True)


def test_weights_are_the_softmax_of_the_first_layers_scores(
    trained: TrainedModel, explanation: Explanation
) -> None:
    model, graph = trained.model, trained.data
    entities, relations = model.entities.detach().double(), model.relations.detach().double()
    head = graph.entities.index(PAIR[0])
    scores = {}
    for h, r, t in graph.train.tolist():
        for h_, r_, t_ in ((h, r, t), (t, r + graph.num_relations, h)):
            if h_ == head:
                name = graph.entities[h], graph.relations[r], graph.entities[t]
                scores[name] = (entities[h_] * relations[r_] * entities[t_]).sum().exp().item()
    for triple in explanation.contexts[0].triples:
        expected = scores[triple.head, triple.relation, triple.tail] / sum(scores.values())
        assert math.isclose(triple.weights[0], expected, rel_tol=1e-4)


def test_shares_match_a_graph_without_the_triple(trained: TrainedModel, explanation: Explanation) -> None:
    graph = trained.data
    pair = graph.entities.index(PAIR[0]), graph.entities.index(PAIR[1])
    relation = graph.relations.index(explanation.relation)
    whole = scores_by_hand(trained, graph.train, pair)[relation].item()
    assert math.isclose(explanation.score, whole, rel_tol=1e-4)
    moved = 0
    for context in explanation.contexts:
        for triple in context.triples[:4]:
            ids = [
                graph.entities.index(triple.head),
                graph.relations.index(triple.relation),
                graph.entities.index(triple.tail),
            ]
            kept = graph.train[(graph.train != ids).any(axis=1)]
            assert len(kept) == len(graph.train) - 1
            scores = scores_by_hand(trained, kept, pair)
            score = scores[relation].item()
            assert math.isclose(triple.score_without, score, rel_tol=1e-4, abs_tol=1e-5)
            assert math.isclose(triple.share, (whole - score) / abs(whole), rel_tol=1e-2, abs_tol=1e-4)
            probability = scores.softmax(0)[relation].item()
            assert math.isclose(triple.probability_without, probability, rel_tol=1e-4)
            moved += abs(triple.share) > 1e-3
    assert moved > 3


def test_top_selects_the_largest_weights(trained: TrainedModel, explanation: Explanation) -> None:
    few = trained.explain(*PAIR, top=2)
    for short, long in zip(few.contexts, explanation.contexts, strict=True):
        assert short == dataclasses.replace(long, triples=long.triples[:2])


@pytest.mark.parametrize(("context", "expected"), [("entity", ["head", "tail"]), ("relation", ["relation"])])
def test_explanation_has_only_the_contexts_of_the_model(
    folder: Path, context: str, expected: list[str]
) -> None:
    path = train_run(folder, "--context", context)
    found = load(path).explain(*PAIR)
    assert [context.of for context in found.contexts] == expected


def test_unknown_name_has_an_empty_context(trained: TrainedModel) -> None:
    found = trained.explain("no such name", PAIR[1])
    assert (found.contexts[0].size, found.contexts[0].triples) == (0, ())
    assert found.contexts[1].size > 0
    assert len(found.notes) == 1


def test_explanation_needs_a_model_with_context(folder: Path) -> None:
    for flags in (("--layers", "0"), ("--model", "a2n")):
        path = train_run(folder, *flags)
        with pytest.raises(InputError, match="expected a model with LightCAKE layers"):
            load(path).explain(*PAIR)


def test_embeddings_give_the_scores_of_the_model(trained: TrainedModel) -> None:
    table, graph = trained.embeddings(), trained.data
    assert (table.entity_names, table.relation_names) == (graph.entities, graph.relations)
    assert table.entities.shape == (graph.num_entities, 6)
    assert table.relations.shape == (2 * graph.num_relations, 6)
    assert table.seen.tolist() == graph.seen_entities.tolist()
    assert sorted(table.others) == ["relation_bias", "unknown_head", "unknown_tail"]
    h, t = (table.entity_names.index(name) for name in PAIR)
    raw = table.relations[: graph.num_relations]
    scores = (table.entities[h] * raw * table.entities[t]).sum(1) + table.others["relation_bias"]
    (best,) = trained.predict([PAIR], top=1)
    assert graph.relations[int(scores.argmax())] == best.relations[0].relation


def test_load_checks_device_and_folder(folder: Path, tmp_path: Path) -> None:
    path = train_run(folder, "--seed", "7")
    assert load(path, device="cpu", backend="reference").config.backend == "reference"
    with pytest.raises(InputError, match=r"device: expected .*, got 'tpu'"):
        load(path, device="tpu")
    with pytest.raises(InputError, match="expected a run folder"):
        load(tmp_path)


def test_run_without_a_finished_epoch_is_rejected(folder: Path) -> None:
    path = train_run(folder, "--seed", "8")
    (path / BEST).unlink()
    with pytest.raises(InputError, match="expected weights of a finished epoch"):
        load(path)


def test_moved_data_folder_needs_a_new_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train_run(tmp_path / "runs")
    before = load(path).predict([PAIR])
    moved = (tmp_path / "runs" / "data").rename(tmp_path / "moved")
    with pytest.raises(
        InputError, match=r"expected the run's data set at .*/data, got nothing there: .* with --dataset$"
    ):
        load(path)
    assert load(path, dataset=moved).predict([PAIR]) == before
    with pytest.raises(InputError, match="got one of another data set"):
        load(path, dataset="family:60")
    capsys.readouterr()
    assert cli.run(evaluate.main, [str(path), "--dataset", str(moved), "--json"]) == 0
    results = json.loads((path / "results.json").read_text())
    assert json.loads(capsys.readouterr().out)["all"] == results["test"]["all"]


def rewritten(path: Path, weights: dict[str, Tensor]) -> Path:
    """Replace the weights of a run by other weights with a valid checksum."""
    config = RunFolder.open(path).config
    fingerprint = load_dataset(config.dataset).fingerprint
    _, notes = load_checkpoint(path / BEST, config=config, fingerprint=fingerprint)
    extra = {name: notes[name] for name in ("epoch", "valid_mrr")}
    save_checkpoint(path / BEST, weights, config=config, fingerprint=fingerprint, notes=extra)
    return path


def test_wrong_or_nan_weights_are_rejected(folder: Path) -> None:
    path = train_run(folder, "--seed", "9")
    good = dict(load(path).model.state_dict())
    for wrong, message in (
        (
            {**good, "entities": good["entities"][:5]},
            "expected the tensors of the model, entities as .*, got ",
        ),
        (
            {name: good[name] for name in good if name != "relations"},
            "expected the tensors of the model, got no relations",
        ),
        ({**good, "surplus": torch.zeros(3)}, "expected the tensors of the model, got unknown surplus"),
        (
            {**good, "entities": good["entities"].double()},
            "entities as torch.float32 .*, got torch.float64",
        ),
    ):
        with pytest.raises(InputError, match=f"(?s){message}"):
            load(rewritten(path, wrong))
    broken = {**good, "entities": torch.full_like(good["entities"], math.nan)}
    trained = load(rewritten(path, broken))
    with pytest.raises(InputError, match="NaN or infinite"):
        trained.predict([PAIR])
    with pytest.raises(InputError, match="NaN or infinite"):
        trained.evaluate()


def test_scores_of_triples_match_predictions(trained: TrainedModel) -> None:
    graph = trained.data
    (expected,) = trained.predict([PAIR], top=graph.num_relations)
    triples = [(PAIR[0], candidate.relation, PAIR[1]) for candidate in expected.relations]
    found = trained.score(triples)
    for rank, (triple, score, candidate) in enumerate(
        zip(triples, found, expected.relations, strict=True), 1
    ):
        assert (score.head, score.relation, score.tail, score.rank) == (*triple, rank)
        assert math.isclose(score.probability, candidate.probability, rel_tol=1e-6)
        assert score.in_training is candidate.in_training
    ids = graph.entities.index(PAIR[0]), graph.entities.index(PAIR[1])
    by_hand = scores_by_hand(trained, graph.train, ids)
    for score in found:
        wanted = by_hand[graph.relations.index(score.relation)].item()
        assert math.isclose(score.score, wanted, rel_tol=1e-4, abs_tol=1e-6)
    (unknown,) = trained.score([("no such name", triples[0][1], PAIR[1])])
    assert unknown.notes[0].startswith("head 'no such name' is not in the data")
    assert trained.score([]) == []


def test_training_triples_are_marked(trained: TrainedModel) -> None:
    graph = trained.data
    names = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.train.tolist()]
    assert all(score.in_training for score in trained.score(names))
    known = set(names)
    pairs = [(head, tail) for head, _, tail in names[:50]] + [(UNSEEN, PAIR[1]), ("no such", PAIR[1])]
    for prediction in trained.predict(pairs, top=graph.num_relations):
        for candidate in prediction.relations:
            triple = prediction.head, candidate.relation, prediction.tail
            assert candidate.in_training is (triple in known)


def test_answers_convert_to_dataframes(trained: TrainedModel) -> None:
    pandas = pytest.importorskip("pandas")
    pairs = [PAIR, ("no such name", PAIR[1])]
    predictions = trained.predict(pandas.DataFrame(pairs, columns=["from", "to"]), top=2)
    assert predictions == trained.predict(np.array(pairs), top=2) == trained.predict(pairs, top=2)
    frame = predictions.to_pandas()
    assert list(frame.columns) == ["head", "tail", "rank", "relation", "probability", "in_training", "note"]
    assert frame["rank"].tolist() == [1, 2, 1, 2]
    assert frame.loc[0, "probability"] == predictions[0].relations[0].probability
    assert frame.loc[2, "note"] == predictions[1].notes[0]
    # columns are selected by name
    assert trained.predict(frame[["tail", "head"]].iloc[::2], top=2) == predictions
    scores = trained.score(frame[["head", "relation", "tail"]])
    assert trained.score(frame[["tail", "relation", "head"]]) == scores
    assert scores.to_pandas()["rank"].tolist() == [1, 2, 1, 2]
    assert scores.to_pandas()["note"].tolist() == frame["note"].tolist()
    explanation = trained.explain(*PAIR, top=2)
    triples = [triple for context in explanation.contexts for triple in context.triples]
    table = explanation.to_pandas()
    assert table["weight_2"].dropna().tolist() == [triple.weights[1] for triple in triples]
    parts: list[Any] = [*triples, *explanation.terms]
    assert table["share"].tolist() == [part.share for part in parts]
    assert table["of"].tolist()[len(triples) :] == [term.of for term in explanation.terms]
    assert trained.predict([]).to_pandas().empty


def test_to_pandas_needs_pandas(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="to_pandas: expected pandas, which is missing"):
        trained.predict([PAIR]).to_pandas()


def test_every_relation_can_be_explained(trained: TrainedModel) -> None:
    (prediction,) = trained.predict([PAIR], top=trained.data.num_relations)
    for rank, candidate in enumerate(prediction.relations, 1):
        explanation = trained.explain(*PAIR, top=1, relation=candidate.relation)
        assert (explanation.relation, explanation.rank) == (candidate.relation, rank)
        assert math.isclose(explanation.probability, candidate.probability, rel_tol=1e-6)
        assert explanation.likeliest == prediction.relations[0]
        assert explanation.contexts[-1].name == candidate.relation
    assert trained.explain(*PAIR) == trained.explain(*PAIR, relation=prediction.relations[0].relation)
    with pytest.raises(
        InputError, match=r"relation: expected .*, got 'cousn': use a known name, such as 'cousin'"
    ):
        trained.explain(*PAIR, relation="cousn")


NO_NAMES: list[Any] = [7, np.int64(7), 7.5, math.nan, None, b"bytes", ("a", "b")]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_must_be_strings(trained: TrainedModel, name: Any) -> None:
    for pair, side in (((name, PAIR[1]), "head"), ((PAIR[0], name), "tail")):
        with pytest.raises(TypeError, match=f"{side}: expected the name of an entity, got "):
            trained.predict([pair])
        with pytest.raises(TypeError, match=f"{side}: expected the name of an entity, got "):
            trained.explain(*pair)
    with pytest.raises(TypeError, match=r"relation: expected the name of a relation, got "):
        trained.score([(PAIR[0], name, PAIR[1])])


def test_wrong_arguments_give_clear_messages(trained: TrainedModel) -> None:
    wrong: Any = trained  # a type checker would reject these calls
    wanted = r"expected a list of \(head, tail\)"
    with pytest.raises(TypeError, match=rf"pairs: {wanted}, got 'a'"):
        wrong.predict("a", "b")
    for rows in (PAIR, ["ab"], [7]):
        with pytest.raises(TypeError, match=rf"pairs: {wanted}, got .* for a row"):
            wrong.predict(rows)
    with pytest.raises(TypeError, match=rf"pairs: {wanted}, got None"):
        wrong.predict(None)
    with pytest.raises(InputError, match=rf"pairs: {wanted}, got \(.*\): use score\(\) for such rows"):
        wrong.predict([("a", "r", "b")])
    with pytest.raises(InputError, match=r"triples: expected .*, got .*: use predict\(\) for such rows"):
        wrong.score([PAIR])
    with pytest.raises(TypeError, match=r"top: expected an integer, got 'b'"):
        wrong.predict([PAIR], "b")
    with pytest.raises(InputError, match=r"split: expected one of train, valid, test, got 'tset'"):
        wrong.evaluate("tset")
    with pytest.raises(ValueError, match=r"ties: expected one of .*, got 'none'"):
        wrong.evaluate("test", "none")


def test_repr_of_a_trained_model_is_one_line(trained: TrainedModel) -> None:
    assert re.fullmatch(
        r"TrainedModel\(lightcake-distmult of width 6 on data: \d+ entities, \d+ relations\)", repr(trained)
    )


def test_answers_print_as_tables(trained: TrainedModel) -> None:
    predictions = trained.predict([PAIR, ("no such name", PAIR[1])], top=2)
    heading, first, *_, last = repr(predictions).splitlines()
    assert heading.split() == ["head", "tail", "rank", "relation", "probability", "in_training", "note"]
    best = predictions[0].relations[0]
    assert f"{best.relation}  " in first
    assert f"  {best.probability:.4f}  " in first
    assert last.endswith(predictions[1].notes[0])
    assert "note" not in repr(trained.predict([PAIR])).splitlines()[0]
    scores = trained.score([(PAIR[0], best.relation, PAIR[1])])
    assert f"{scores[0].score:.4f}  " in repr(scores)
    assert repr(trained.predict([])).split() == list(predictions.columns)


def test_explanation_prints_as_a_table(trained: TrainedModel) -> None:
    explanation = trained.explain(*PAIR, top=1)
    title, heading, *rows = repr(explanation).splitlines()
    assert title == (
        f"explanation of {explanation.relation!r} from {PAIR[0]!r} to {PAIR[1]!r}: score "
        f"{explanation.score:.4f}, probability {explanation.probability:.4f}, rank {explanation.rank}"
    )
    triples = [triple for context in explanation.contexts for triple in context.triples]
    assert len(rows) == len(triples) + len(explanation.terms)
    assert f"{triples[0].weights[0]:.4f}" in rows[0]
    assert "second" not in heading, "the model has no paths"
    (unknown,) = trained.explain("no such name", PAIR[1]).notes
    assert f"note: {unknown}" in repr(trained.explain("no such name", PAIR[1])).splitlines()


def test_notebook_tables_escape_names(trained: TrainedModel, peer: Callable[[str], Any]) -> None:
    name = "<script>a & b</script> $x$"
    display = peer("IPython.core.formatters").DisplayFormatter()
    shown = display.format(trained.predict([(name, PAIR[1])], top=1))[0]["text/html"]
    assert "<td>&lt;script&gt;a &amp; b&lt;/script&gt; $x$</td>" in shown
    assert name not in shown
    assert 'class="tex2jax_ignore mathjax_ignore"' in shown
    assert shown.count("<tr>") == 2


def test_long_tables_are_cut(trained: TrainedModel) -> None:
    predictions = trained.predict([PAIR] * 60, top=1)
    assert repr(predictions).splitlines()[-1] == "... 10 more rows: to_pandas() returns all"
    assert len(repr(predictions).splitlines()) == 52
