"""What hypothesis draws from: texts that spell control tokens, values of JSON."""

from hypothesis import strategies as st

from workflow_scripts.model.spellings import MASK

TEXT = st.text() | st.lists(
    st.sampled_from(["<|im_end|>", "<think>", "</think>", "<|im_", "end|>", MASK, "0", "a", "\n"])
).map("".join)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
