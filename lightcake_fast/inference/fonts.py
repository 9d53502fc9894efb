"""Fonts for names in any script: the default fonts of matplotlib, then other installed fonts."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def families_for(texts: Iterable[str]) -> tuple[list[str], str]:
    """Font families that together draw all texts, and the characters without an installed font.

    Other fonts are read only if the default fonts lack a character.
    """
    from matplotlib import font_manager, rcParams

    families = list(rcParams["font.family"])
    missing = {ord(character) for text in texts for character in text if character.isprintable()}
    for family in families:
        missing -= _drawn(font_manager.findfont(font_manager.FontProperties(family=[family])), missing)
    tried = {*families, "Last Resort High-Efficiency"}  # a font of matplotlib that draws boxes
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
    """Suppress matplotlib's warnings about missing characters and font weights."""
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
    """The characters that a font file can draw."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        found = characters & font.get_charmap().keys()
        font.set_size(10, 72)
        for character in sorted(found)[:1]:  # bitmap fonts, for example colored emoji, fail here
            font.load_char(character)
    except (OSError, RuntimeError):
        return set()
    return found
