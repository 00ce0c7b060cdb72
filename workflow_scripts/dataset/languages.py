"""Whether an answer is in another script or language than its question."""

import re
from functools import cache
from typing import Any

from workflow_scripts.texts.scripts import script

LANGUAGE_CHARS = 2000
SURE = 0.99  # probability from which a language is believed
ENOUGH_WORDS = 20
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
# A question for a translation, in the languages that most prompts are in.
TRANSLATION = re.compile(
    r"\btranslat|\btradu[cizt]|übersetz|перевед|перевод|翻译|翻譯|翻訳|訳して|번역|ترجم",
    re.IGNORECASE,
)
# Languages that the identifier confuses, written in scripts that they share.
ALIKE = ({"no", "nb", "nn", "da", "sv"}, {"hr", "bs", "sr", "sl"}, {"id", "ms"}, {"cs", "sk"})


def wrong_language(question: str, answer: str) -> str | None:
    """The two scripts or languages in words; None if they are the same, if one is not sure, or if
    the question asks for a translation."""
    if TRANSLATION.search(question):
        return None
    texts = [CODE.sub(" ", text[:LANGUAGE_CHARS]) for text in (question, answer)]
    asked, answered = map(script, texts)
    if {asked, answered} & {"none", "other"}:
        return None
    if asked != answered:
        return f"question in {asked} letters, answer in {answered}"
    if min(len(text.split()) for text in texts) < ENOUGH_WORDS:
        return None
    (one, sure), (other, certain) = map(_identifier().classify, texts)
    if one == other or min(sure, certain) < SURE or any({one, other} <= some for some in ALIKE):
        return None
    return f"question in {one}, answer in {other}"


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # reads its model

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
