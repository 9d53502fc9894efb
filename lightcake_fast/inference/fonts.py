"""Fonts for names in any script: those that matplotlib takes by default, then whatever is installed."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def families_for(texts: Iterable[str]) -> tuple[list[str], str]:
    """Font families that draw all texts together, and the characters that no installed font has.

    The charmaps of other fonts are read only where the default lacks a character.
    """
    from matplotlib import font_manager, rcParams

    families = list(rcParams["font.family"])
    missing = {ord(character) for text in texts for character in text if character.isprintable()}
    for family in families:
        missing -= _drawn(font_manager.findfont(font_manager.FontProperties(family=[family])), missing)
    tried = {*families, "Last Resort High-Efficiency"}  # which comes with matplotlib: a box for everything
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, str(font.weight))):
        if not missing:
            break
        if font.name in tried or font.style != "normal":
            continue
        tried.add(font.name)
        found = _drawn(font.fname, missing)
        if found:
            families.append(font.name)
            missing -= found
    return families, "".join(map(chr, sorted(missing)))


@contextmanager
def no_warnings() -> Iterator[None]:
    """Draw without matplotlib's line for each character and weight that a font lacks."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")
            yield
    finally:
        log.setLevel(level)


def _drawn(path: str, characters: set[int]) -> set[int]:
    """Those of the characters that a font file can draw."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        found = characters & font.get_charmap().keys()
        font.set_size(10, 72)
        for character in sorted(found)[:1]:  # fonts of bitmaps, as of coloured emoji, fail here
            font.load_char(character)
    except (OSError, RuntimeError):
        return set()
    return found
