"""Control tokens in texts, many and of every kind, as the tokenizers library finds them."""

from hypothesis import given
from hypothesis import strategies as st

from tests.made.model import END_OF_TEXT, IM_END, SPECIAL, TEMPLATE, byte_tokenizer
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.model.spellings import MASK, Spellings

# Some begin or end as others do or stand in another; some hold what patterns are written with.
TOKENS = ["<s>", "<s", "s>>", "<|a|>", "<|a|><|b|>", "<|b|>", "|>", "[]", "[^]", "\\w", "--", "été"]
MANY = [f"<|extra_{number}|>" for number in range(20_000)]


def prompts(tokens: list[str]) -> Prompts:
    text = byte_tokenizer([*SPECIAL, *tokens]).to_str()
    return Prompts(text, TEMPLATE, {}, True, [IM_END, END_OF_TEXT])


ODD = prompts(TOKENS)


@given(st.lists(st.sampled_from([*TOKENS, "<", ">", "|", "s", "a", "^", "]", " "])).map("".join))
def test_texts_are_cut_as_the_library_cuts_them(text: str) -> None:
    ids = ODD.tokenizer.encode(text, add_special_tokens=False).ids
    pieces = ODD.spellings.cut(text)
    assert "".join(pieces) == text
    assert [ODD.added[piece] for piece in pieces[1::2]] == [i for i in ids if i > 255]
    assert ODD._encode_pieces(text, ODD.encode_text) == ids
    assert ODD.spellings.found([text]) == {*pieces[1::2]}


@given(st.lists(st.sampled_from([*TOKENS, MASK, "1", "<", "|"])).map("".join))
def test_what_is_masked_spells_no_token_and_comes_back(text: str) -> None:
    masked = ODD.spellings.masked({text: [text]})
    ((key, [value]),) = masked.items()
    assert key == value and ODD.spellings.found([value]) == set()
    assert ODD.spellings.restored(masked) == {text: [text]}
    assert ODD.encode_text(ODD.spellings.unmasked(value)) == [*text.encode()]


def test_a_text_that_spells_none_is_the_same_object() -> None:
    text = "1 < 2 |> [3]"
    assert Spellings(["<|a|>"]).masked(text) is text
    assert Spellings([]).masked(text) is text and Spellings([]).cut(text) == [text]


def test_many_tokens() -> None:
    """By hand: the template's own are tokens, a row's are the bytes that spell them."""
    many = prompts(MANY)
    typed = "a<|extra_7|> <|extra_777|><|extra_19999|>, no <|extra_20000|>"
    assert many.prompt_ids([{"role": "user", "content": typed}]) == [
        *(256, *b"user\n", *typed.encode(), 257, 10),
        *(256, *b"assistant\n", 259, 10),
    ]
    pieces = [261 + 7, 32, 261 + 777, 261 + 19_999]
    assert many.encode([typed]) == [[97, *pieces, *b", no <|extra_20000|>"]]
    assert many._encode_pieces(typed, many.encode_text) == many.encode([typed])[0]
    assert many.spellings.found([typed]) == {MANY[7], MANY[777], MANY[19_999]}
