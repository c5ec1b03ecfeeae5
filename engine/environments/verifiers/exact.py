"""Exact text: an answer is right that is the row's, after both were normalised in the same way."""

import unicodedata

from engine.environments.verifiers.contract import Verification
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import ExactText

_FORMS = {"nfc": "NFC", "nfkc": "NFKC"}


class ExactVerifier:
    def __init__(self, settings: ExactText) -> None:
        self._settings = settings

    def lacking(self, row: DatasetRow) -> str | None:
        if row.answer is None:
            return "it has no answer to compare with"
        return None if normalised(row.answer, self._settings) else "nothing is left of its answer after normalisation"

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        assert row.answer is not None  # ``lacking`` has looked
        return Verification(normalised(result, self._settings) == normalised(row.answer, self._settings))


def normalised(text: str, settings: ExactText) -> str:
    """What is compared of a text.  Applying it twice changes nothing more."""
    text = _in_form(text, settings.unicode)
    if settings.ignore_case:
        text = _in_form(text.casefold(), settings.unicode)
    if settings.ignore_punctuation:
        text = "".join(character for character in text if not unicodedata.category(character).startswith("P"))
    return " ".join(text.split()) if settings.strip else text


def _in_form(text: str, form: str) -> str:
    if form == "none":
        return text
    if form == "nfkc":
        text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return unicodedata.normalize(_FORMS[form], text)  # type: ignore[arg-type]
