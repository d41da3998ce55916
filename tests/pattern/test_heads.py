import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import causal, distance, document, everything, per_head, sliding_window


def test_each_head_has_its_own():
    parts = [causal(), sliding_window(2), document(torch.randint(2, (3, 5)))]
    pattern = per_head(parts)
    assert (pattern.heads, pattern.batch) == (3, 3)
    mask = pattern.mask(5, 5)
    for head, part in enumerate(parts):
        assert mask[:, head].equal(part.mask(5, 5).expand(3, 1, 5, 5)[:, 0])


def test_it_is_joined_with_what_holds_for_all_heads():
    pattern = causal() & per_head([everything(), distance(1)])
    assert pattern.heads == 2
    assert (~pattern).heads == 2
    assert pattern.mask(3, 3)[0, 1].nonzero().tolist() == [[1, 0], [2, 1]]


def test_what_is_known_of_it_is_known_of_every_head():
    assert per_head([sliding_window(4), distance(7)]).reach == (7, 0)
    assert per_head([causal(), sliding_window(4)]).reach == (None, 0)
    assert per_head([causal(), causal()]).window == (None, 0)
    assert per_head([causal(), sliding_window(4)]).window is None
    assert per_head([causal(), everything()]).positional
    assert not per_head([everything()]).positional


def test_why_speaks_of_the_head():
    pattern = per_head([causal(), sliding_window(2)])
    assert pattern.why(5, 2) == "head 0, query 5 -> key 2: inside causal"
    assert pattern.why(5, 2, head=1) == "head 1, query 5 -> key 2: outside sliding_window(2)"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], ("one pattern for each head", "got: 0 patterns")),
        ([causal(), per_head([causal()])], ("each the same for all heads", "per_head(causal) for 1 heads")),
    ],
)
def test_what_is_no_list_of_heads_says_so(parts, told):
    with pytest.raises(MultiheadError) as error:
        per_head(parts)
    for words in told:
        assert words in str(error.value)


def test_batch_sizes_do_not_mix():
    with pytest.raises(MultiheadError, match="batch=2 and batch=3"):
        per_head([document(torch.zeros(2, 4).long()), document(torch.zeros(3, 4).long())])
