"""Models with profile, links, paths and mixing: shares of the score, compared with counts by hand."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lightcake_fast import export, load, predict
from lightcake_fast.inference import Explanation, TrainedModel, figure
from lightcake_fast.inference.report import explanation_tables, term_text
from tests.support.comparison import assert_close
from tests.support.trained_runs import PAIR, UNSEEN, train_run

TERMS = ("--profile", "score", "--links")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terms") / "runs"


@pytest.fixture(
    scope="module",
    params=[
        ("--layers", "2", "--profile", "both", "--links", "--mixing"),
        ("--layers", "0", *TERMS, "--paths"),
    ],
    ids=["lightcake", "counts, links and paths"],
)
def trained(folder: Path, request: pytest.FixtureRequest) -> TrainedModel:
    return load(train_run(folder, *request.param))


@pytest.fixture(scope="module")
def linked(trained: TrainedModel) -> tuple[str, str]:
    """The pair with the most training triples."""
    triples, data = trained.data.train, trained.data
    pairs, counts = np.unique(np.sort(triples[:, ::2]), axis=0, return_counts=True)
    h, t = pairs[counts.argmax()]
    return data.entities[h], data.entities[t]


@pytest.fixture(scope="module")
def explanation(trained: TrainedModel, linked: tuple[str, str]) -> Explanation:
    return trained.explain(*linked, top=100)


def evidence(trained: TrainedModel, pair: tuple[str, str]) -> dict[str, Tensor]:
    """Counts of relations of head and tail, and of links, float64 `[2R]`; of paths `[2R, 2R]`."""
    half = trained.data.num_relations
    h, t = (trained.data.entities.index(name) for name in pair)
    parts = {part: torch.zeros(2 * half, dtype=torch.float64) for part in ("head", "tail", "links")}
    for head, relation, tail in trained.data.train.tolist():
        for part, entity in (("head", h), ("tail", t)):
            parts[part][relation] += head == entity
            parts[part][relation + half] += tail == entity
        parts["links"][relation] += (head, tail) == (h, t)
        parts["links"][relation + half] += (tail, head) == (h, t)
    if trained.model.paths is not None:
        triples = {(h, r, t) for h, r, t in trained.data.train.tolist()}
        triples |= {(t, r + half, h) for h, r, t in triples}
        parts["paths"] = torch.zeros(2 * half, 2 * half, dtype=torch.float64)
        for head, relation, middle in triples:
            for start, second, tail in triples:
                joined = (head, middle, tail) == (h, start, t) and middle not in (h, t)
                parts["paths"][relation, second] += joined
    return parts


def scores_by_hand(trained: TrainedModel, pair: tuple[str, str], parts: dict[str, Tensor]) -> Tensor:
    """DistMult scores `[R]` from the exported tables and these counts."""
    table, half = trained.embeddings(), trained.data.num_relations
    other = {name: value.double() for name, value in table.others.items()}
    rows = []
    for side, name in zip(("head", "tail"), pair, strict=True):
        row = table.entities[table.entity_names.index(name)].double()
        rows.append(row + parts[side].log1p() @ other[f"profile.of_{side}"] + other[f"profile.{side}"])
    asked = rows[0] * rows[1] + parts["links"] @ other["links.of_link"]
    if "paths" in parts:
        first, second = other["paths.of_first"], other["paths.of_second"]
        asked = asked + torch.einsum("pq,pd,qd->d", parts["paths"].log1p(), first, second)
    return table.relations[:half].double() @ asked + other["relation_bias"]


def test_exported_tables_give_the_scores(trained: TrainedModel, linked: tuple[str, str]) -> None:
    parts = evidence(trained, linked)
    assert all(counts.any() for counts in parts.values())
    expected = scores_by_hand(trained, linked, parts).softmax(0)
    (found,) = trained.predict([linked], top=100)
    order = [trained.data.relations.index(candidate.relation) for candidate in found.relations]
    assert_close(torch.tensor([c.probability for c in found.relations]), expected[order], slack=10)


def test_shares_match_changed_counts(
    trained: TrainedModel, linked: tuple[str, str], explanation: Explanation
) -> None:
    parts, half = evidence(trained, linked), trained.data.num_relations
    relation = trained.data.relations.index(explanation.relation)
    whole = scores_by_hand(trained, linked, parts)[relation].item()
    names = {"profile of head": "head", "profile of tail": "tail", **{part: part for part in parts}}
    listed: dict[str, set[Any]] = {part: set() for part in parts}
    for term in explanation.terms:
        if term.of == "context":
            continue
        part = names[term.of]
        changed = {key: counts.clone() for key, counts in parts.items()}
        if term.relation is None:
            changed[part].zero_()
            assert term.count == parts[part].sum()
        else:
            place: Any = (trained.data.relations.index(term.relation) + half * term.inverse,)
            if term.second is not None:
                place += (trained.data.relations.index(term.second) + half * term.second_inverse,)
            listed[part].add(place)
            assert term.count == parts[part][place] > 0
            changed[part][place] = 0
        scores = scores_by_hand(trained, linked, changed)
        left = scores[relation].item()
        assert math.isclose(term.score_without, left, rel_tol=1e-4, abs_tol=1e-5)
        assert math.isclose(term.share, (whole - left) / abs(whole), rel_tol=1e-2, abs_tol=1e-4)
        assert math.isclose(term.probability_without, scores.softmax(0)[relation].item(), rel_tol=1e-4)
    assert listed == {part: set(map(tuple, counts.nonzero().tolist())) for part, counts in parts.items()}
    for of in {term.of for term in explanation.terms} & names.keys():
        shares = [abs(term.share) for term in explanation.terms if term.of == of and term.relation]
        assert shares == sorted(shares, reverse=True)
        assert max(shares) > 1e-3


def test_context_share_matches_a_graph_without_triples(
    trained: TrainedModel, linked: tuple[str, str], explanation: Explanation
) -> None:
    contexts = [term for term in explanation.terms if term.of == "context"]
    assert len(contexts) == trained.model.has_context
    for term in contexts:
        model = trained.model
        with torch.no_grad():  # without context triples, embeddings and profiles stay unrefined
            tables = model.entities, model.relations
            pair = torch.tensor([[trained.data.entities.index(name) for name in linked]])
            graph = trained._experiment.graph
            scores = model.relation_scores(tables, pair, model.evidence(graph, pair))[0]
        relation = trained.data.relations.index(explanation.relation)
        assert math.isclose(term.score_without, scores[relation].item(), rel_tol=1e-4)
        assert abs(term.share) > 1e-3
    for context in explanation.contexts:
        for layer in range(2):
            assert math.isclose(sum(t.weights[layer] for t in context.triples), 1, rel_tol=1e-5)


def test_unseen_entities_have_zero_counts(trained: TrainedModel) -> None:
    for name in (UNSEEN, "no such name"):
        found = trained.explain(name, PAIR[1])
        counts = {term.of: term.count for term in found.terms if term.relation is None}
        assert (counts["profile of head"], counts["links"], counts.get("paths", 0)) == (0, 0, 0)
        assert counts["profile of tail"] > 0


def test_top_selects_the_largest_shares(
    trained: TrainedModel, linked: tuple[str, str], explanation: Explanation
) -> None:
    few = trained.explain(*linked, top=1)
    parts = [term.of for term in explanation.terms if term.relation is None]
    assert [term for term in few.terms if term.relation is None] == [
        term for term in explanation.terms if term.relation is None
    ]
    for part in parts:
        entries = [[t for t in e.terms if t.of == part and t.relation] for e in (few, explanation)]
        assert entries[0] == entries[1][:1]


def test_dataframe_has_one_row_per_term(explanation: Explanation) -> None:
    pandas = pytest.importorskip("pandas")
    frame = explanation.to_pandas()
    triples = [triple for context in explanation.contexts for triple in context.triples]
    assert frame["tail"].tolist()[: len(triples)] == [triple.tail for triple in triples]
    terms = frame.iloc[len(triples) :]
    assert {"profile of head", "profile of tail", "links"} < set(terms["of"])
    for row, term in zip(terms.to_dict("records"), explanation.terms, strict=True):
        assert (row["of"], row["share"], row["count"]) == (term.of, term.share, term.count)
        inverse = None if term.relation is None else term.inverse
        second_inverse = None if term.second is None else term.second_inverse
        names = ("relation", "inverse", "second", "second_inverse")
        found = [None if pandas.isna(row[name]) else row[name] for name in names]
        assert found == [term.relation, inverse, term.second, second_inverse]


def test_terms_table_and_figure(
    trained: TrainedModel, explanation: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    title, table = next(explanation_tables(explanation, 100))
    assert title == "parts of the score"
    assert table.row_count == len(explanation.terms)
    matplotlib_figure = pytest.importorskip("matplotlib.figure", reason="needs the plots extra")
    drawn = []
    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    figure.draw(explanation, tmp_path / "why.png")
    labels = figure.shortened(figure._names(explanation))
    bars = drawn[0].axes[-1]
    terms = [term for term in explanation.terms if term.share]
    assert [patch.get_width() for patch in bars.patches] == [term.share for term in terms]
    texts = bars.get_yticklabels()
    assert [text.get_text() for text in texts] == [
        term_text(explanation, term, labels.__getitem__) for term in terms
    ]
    starts = [text.get_window_extent().x0 for text in texts]
    assert max(starts) - min(starts) < 1e-6, "labels start at the left, so that spaces indent them"
    assert [text.get_text().startswith("  ") for text in texts] == [
        term.relation is not None for term in terms
    ]
    figure.draw(dataclasses.replace(explanation, terms=explanation.terms[:1]), tmp_path / "why.png")
    assert len(drawn[1].axes) == len(drawn[0].axes) - 1


def test_notebook_shows_the_explanation_figure(
    explanation: Explanation, tmp_path: Path, peer: Callable[[str], Any]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    named = dataclasses.replace(explanation, tail="$x$")
    picture = named.plot()
    shown, _ = peer("IPython.core.formatters").DisplayFormatter().format(picture)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert "$x$" in [text.get_text() for text in picture.axes[0].texts]
    assert not any(text.get_parse_math() for axes in picture.axes for text in axes.texts)


def test_term_with_zero_share_has_no_bar(
    explanation: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib_figure = pytest.importorskip("matplotlib.figure", reason="needs the plots extra")
    drawn = []
    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    nothing = dataclasses.replace(explanation.terms[0], of="links", relation=None, count=0, share=0.0)
    figure.draw(dataclasses.replace(explanation, terms=(*explanation.terms, nothing)), tmp_path / "why.png")
    figure.draw(explanation, tmp_path / "why.png")
    more, without = ([text.get_text() for text in each.axes[-1].get_yticklabels()] for each in drawn)
    assert more == without


def test_predict_and_export_commands_with_terms(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_run(folder, "--layers", "0", *TERMS)
    predict.main([str(run), "--head", PAIR[0], "--tail", PAIR[1], "--explain"])
    assert "parts of the score" in capsys.readouterr().out
    export.main([str(run), "--to", str(tmp_path / "all.safetensors")])
    names = set(load_file(tmp_path / "all.safetensors"))
    assert {"profile.of_head", "profile.of_tail", "profile.head", "profile.tail", "links.of_link"} < names
