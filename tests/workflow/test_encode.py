import pytest

from multihead.corpus import Text
from multihead.error import MultiheadError
from multihead.workflow.encode import checked_length, encode_texts, length_limit
from workflow.fakes import LetterTokenizer, bert, t5

FRAMES = [((1,), (2,)), ((), ()), ((1,), ()), ((), (2,))]


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("letters", [2, 9, 10, 11, 95])
def test_chunks_hold_every_token_in_order_each_within_the_frame(frame, letters):
    tokenizer = LetterTokenizer(frame=frame)
    text = Text("abc", ("abcdefghijk" * 10)[:letters])
    encoded = encode_texts(bert(), tokenizer, [text], max_length=12)
    before, after = frame
    seen = []
    for batch in encoded.batches:
        ids = batch.inputs["input_ids"][0].tolist()
        assert len(ids) <= 12
        assert tuple(ids[: len(before)]) == before
        assert tuple(ids[len(ids) - len(after) :]) == after
        seen += ids[len(before) : len(ids) - len(after)]
    assert seen == tokenizer(text.content, add_special_tokens=False)["input_ids"]
    assert encoded.tokens == letters + len(encoded.batches) * (len(before) + len(after))


def test_documents_keep_their_names_digests_and_chunks():
    texts = [Text("one", "abcabcabcabcabcabc"), Text("two", "xyz")]
    encoded = encode_texts(bert(), LetterTokenizer(), texts, max_length=12)
    assert [(d.name, d.digest) for d in encoded.documents] == [(t.name, t.digest) for t in texts]
    assert [b.document for b in encoded.batches] == [(0,), (0,), (1,)]
    assert [d.tokens for d in encoded.documents] == [18 + 4, 3 + 2]


def test_an_encoder_decoder_reads_the_text_on_both_sides():
    batch = encode_texts(t5(), LetterTokenizer(frame=((), (2,))), [Text("t", "abc")], max_length=12).batches[0]
    assert batch.inputs["input_ids"].tolist() == [[3, 4, 5, 2]]
    assert batch.inputs["decoder_input_ids"].tolist() == [[0, 3, 4, 5]]


def test_no_texts_and_short_texts_are_refused_by_name():
    with pytest.raises(MultiheadError, match="at least one text"):
        encode_texts(bert(), LetterTokenizer(), [], max_length=12)
    with pytest.raises(MultiheadError, match=r"2 tokens in short.txt\n  got: 1 token from 'a'"):
        encode_texts(bert(), LetterTokenizer(), [Text("fine", "abc"), Text("short.txt", "a")], max_length=12)


def test_length_comes_from_the_model_or_the_user():
    tokenizer = LetterTokenizer()
    assert length_limit(bert(length=64), tokenizer) == 64
    assert length_limit(t5(), tokenizer) is None
    assert checked_length(None, 64) == 64
    assert checked_length(None, 8192) == 512
    assert checked_length(None, None) == 512
    assert checked_length(100, None) == 100


@pytest.mark.parametrize("asked", [-1, 0, 3, 65])
def test_lengths_that_cannot_be_are_refused_with_one_that_can(asked):
    with pytest.raises(MultiheadError, match=rf"got: max_length={asked}, the model takes 64 tokens"):
        checked_length(asked, 64)


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(MultiheadError, match=r"below 40.*\n  got: the id 99"):
        encode_texts(bert(), LetterTokenizer(frame=((99,), ())), [Text("t", "abc")], max_length=12)
