"""Suggestions for a misspelt name: equal to the suggestions of `difflib`, also among many names."""

import difflib
import random

import pytest

from lightcake_fast.data.nearest import nearest_names

PEOPLE = [
    f"{first} {last} {n}"
    for n in range(40)
    for first in ("Émile", "Nils", "Priya")
    for last in ("Ito", "Žák")
]
CODES = [f"/m/0{n:05x}" for n in range(0, 200_000, 7)]
ADDRESSES = [f"http://example.org/resource/of/films/Film_number_{n:06d}_(film)" for n in range(3_000)]


def misspelt(name: str, draw: random.Random) -> str:
    """The name with one letter more, one letter less, or two swapped letters."""
    place = draw.randrange(len(name) - 1)
    before, after = name[:place], name[place + 2 :]
    return draw.choice(
        [
            f"{before}x{name[place:]}",
            before + name[place + 1 :],
            before + name[place + 1] + name[place] + after,
        ]
    )


def ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, name).ratio()


@pytest.mark.parametrize("names", [PEOPLE, CODES, ADDRESSES], ids=["people", "codes", "addresses"])
def test_first_suggestion_has_the_best_similarity(names: list[str]) -> None:
    draw = random.Random(0)
    for name in draw.sample(names, 8):
        typed = misspelt(name, draw)
        found = nearest_names(typed, names)
        assert ratio(typed, found[0]) == max(ratio(typed, other) for other in names)
        assert found == sorted(found, key=lambda other: -ratio(typed, other))


def test_few_names_give_the_result_of_difflib() -> None:
    draw = random.Random(1)
    for name in draw.sample(PEOPLE, 20):
        typed = misspelt(name, draw)
        assert nearest_names(typed, PEOPLE) == difflib.get_close_matches(typed, PEOPLE)


def test_difflib_compares_only_a_shortlist(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    full = difflib.get_close_matches

    def counted(word: str, names: list[str], n: int) -> list[str]:
        compared.append(len(names))
        return full(word, names, n)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    many = [f"Person Number {n}" for n in range(300_000)]  # several blocks
    assert nearest_names("Person Nummer 77", many)[0] in {"Person Number 77", "Person Number 177"}
    assert nearest_names("Person Number 299999x", many)[0] == "Person Number 299999"
    nearest_names("Person " * 500, many)
    assert compared == [512, 512, 8]


@pytest.mark.parametrize("typed", ["", "?", "\ud800", "no such name"])
def test_no_suggestion_for_an_unrelated_name(typed: str) -> None:
    assert nearest_names(typed, CODES) == []
