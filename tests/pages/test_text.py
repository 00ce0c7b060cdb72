"""Anybody's texts as every page shows them."""

import pytest

from workflow_scripts.pages.text import environment, visible


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x1b[2Jb", "a␛[2Jb"),
        ("a\r\nb", "a␍\nb"),
        (
            "paid \u202edeterf\u202c",
            "paid ⟨U+202E⟩deterf⟨U+202C⟩",
        ),  # turned round by a bidi override
        ("pass\u200bword\ufeff", "pass⟨U+200B⟩word⟨U+FEFF⟩"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # Persian needs the joiners
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("x" * 901, "x" * 900 + " … (1 more characters)"),
    ],
)
def test_what_cannot_be_seen_has_a_sign(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert environment().from_string("{{ text | shown }}").render(text=text) == seen


def test_nothing_of_a_text_is_markup() -> None:
    page = environment().from_string("<p title='{{ text | shown }}'>{{ text | shown }}</p>")
    assert page.render(text="<b>'\"&") == (
        "<p title='&lt;b&gt;&#39;&#34;&amp;'>&lt;b&gt;&#39;&#34;&amp;</p>"
    )
