import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.error import MultiheadError
from multihead.record import HeadAddress

STACKS = st.sampled_from(["", "encoder", "decoder", "cross", "text_model"])


@given(STACKS, st.integers(0, 500), st.integers(0, 500))
def test_parse_reads_what_str_prints(stack, layer, head):
    address = HeadAddress(stack, layer, head)
    assert HeadAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("L18.H6", HeadAddress("", 18, 6)),
        ("encoder.L10.H5", HeadAddress("encoder", 10, 5)),
        (" cross.L2.H1 ", HeadAddress("cross", 2, 1)),
    ],
)
def test_the_three_forms(text, address):
    assert HeadAddress.parse(text) == address


@pytest.mark.parametrize(
    "text", ["", "18.6", "L18", "l1.h2", "L-1.H0", "L1.H2.", "enc oder.L1.H1", "L١.H٢", "L1.H2\n.L1"]
)
def test_anything_else_is_refused_with_the_form(text):
    with pytest.raises(MultiheadError, match=r"L18\.H6, encoder\.L10\.H5") as caught:
        HeadAddress.parse(text)
    assert repr(text) in str(caught.value)
