import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multihead.corpus import (
    CLASSES,
    Text,
    WordReader,
    default_texts,
    place_classes,
    read_script,
    repeated_tokens,
)
from multihead.error import MultiheadError
from multihead.workflow.encode import cut_script, encode_runs, encode_texts, find_frame
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


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(MultiheadError, match=r"below 40.*\n  got: the id 99"):
        encode_texts(bert(), LetterTokenizer(frame=((99,), ())), [Text("t", "abc")], max_length=12)


LETTERS = LetterTokenizer()
STORY = "the cat sat on the mat. the cat slept there all day long, and the dog slept too. " * 4


@given(text=st.text(alphabet="abc .", min_size=2, max_size=200), room=st.integers(1, 60))
def test_chunks_share_out_the_tokens_between_words_where_they_can(text, room):
    script = read_script(LETTERS, WordReader(LETTERS), text)
    chunks = list(cut_script(script, room))
    assert [0, *(stop for _, stop in chunks)] == [*(start for start, _ in chunks), len(script)]
    assert all(0 < stop - start <= room for start, stop in chunks)
    assert room < 3 or len(script) < 2 or all(stop - start >= 2 for start, stop in chunks)
    for start, stop in chunks[:-1]:
        last = start + room - (len(script) - start - room == 1 and room > 2)
        places = range(max(start + min(2, room), last - 15), last + 1)
        borders = [place for place in places if script.begins(place)]
        assert stop == (borders[-1] if borders else last)


def test_a_long_text_is_tokenised_once():
    class Counting(LetterTokenizer):
        read = 0

        def __call__(self, text, **more):
            Counting.read += len(text)
            return super().__call__(text, **more)

    encode_texts(bert(), Counting(), [Text("t", STORY), Text("u", STORY)], max_length=64)
    assert Counting.read == 2 * len(STORY) + 2  # and one letter twice, for the special tokens


@pytest.mark.parametrize("frame", FRAMES)
def test_the_frame_is_found_from_a_letter(frame):
    before, after = frame
    assert find_frame(LetterTokenizer(frame=frame), [Text("t", STORY)]) == ([*before], [*after])


def test_the_frame_is_found_from_the_shortest_text_where_no_letter_has_a_token():
    class Signs(LetterTokenizer):
        def __call__(self, text, *, add_special_tokens=True):
            ids = [5 for c in text if c in ".,"]
            return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}

    assert find_frame(Signs(), [Text("long", "....."), Text("short", ".")]) == ([1], [2])
    assert find_frame(Signs(), []) == ([], [])


def test_batches_carry_the_class_of_every_token_by_its_word():
    encoded = encode_texts(bert(), LETTERS, [Text("t", STORY)], max_length=20)
    inner = torch.cat([batch.classes["input_ids"][0, 1:-1] for batch in encoded.batches])
    ids = LETTERS(STORY, add_special_tokens=False)["input_ids"]
    assert inner.tolist() == place_classes(LETTERS, STORY, ids).tolist()
    for batch in encoded.batches:
        assert batch.classes["input_ids"].shape == batch.inputs["input_ids"].shape
        assert [CLASSES[batch.classes["input_ids"][0, place]] for place in (0, -1)] == ["special"] * 2
    assert encoded.lengths == tuple(batch.inputs["input_ids"].shape[1] for batch in encoded.batches)
    assert sum(encoded.lengths) == encoded.tokens


def test_spans_tell_the_words_that_stand_there():
    texts = [Text("t", STORY), Text("u", STORY[27:])]
    encoded = encode_texts(bert(), LETTERS, texts, max_length=50)
    read = [0, 0]
    spans = 0
    back = {place: token for token, place in LETTERS.get_vocab().items()}
    for batch in encoded.batches:
        ids = batch.inputs["input_ids"][0].tolist()
        for span in batch.spans:
            spans += 1
            assert span.before == read[batch.document[0]]
            assert 16 <= len(span.units) <= 40
            for unit, told in enumerate(span.texts):
                tokens = [back[ids[span.start + k]] for k, u in enumerate(span.units) if u == unit]
                assert "".join(tokens) == told.replace("␣", " ")
        read[batch.document[0]] += len(ids)
    assert spans == 6


def test_the_same_stretch_stands_on_the_decoders_side():
    tokenizer = LetterTokenizer(frame=((), (2,)))
    batch = encode_texts(t5(), tokenizer, [Text("t", STORY[:60])], max_length=64).batches[0]
    by_side = {span.side: span for span in batch.spans}
    one, two = by_side["input_ids"], by_side["decoder_input_ids"]
    assert (two.start, two.units, two.texts) == (one.start + 1, one.units, one.texts)
    size = len(one.units)
    assert torch.equal(
        batch.inputs["input_ids"][0, one.start : one.start + size],
        batch.inputs["decoder_input_ids"][0, two.start : two.start + size],
    )
    assert batch.classes["decoder_input_ids"][0, 1:].tolist() == batch.classes["input_ids"][0, :-1].tolist()
    assert CLASSES[batch.classes["decoder_input_ids"][0, 0]] == "special"


def test_a_last_word_without_room_on_the_decoders_side_is_left_out():
    tokenizer = LetterTokenizer(frame=((), ()))
    batch = encode_texts(t5(), tokenizer, [Text("t", "the cat")], max_length=64).batches[0]
    spans = {span.side: span for span in batch.spans}
    assert spans["input_ids"].texts == ("the", "␣", "cat")
    assert spans["decoder_input_ids"].texts == ("the", "␣")
    assert spans["decoder_input_ids"].units == (0, 0, 0, 1)


def test_one_run_has_a_stretch_and_no_words():
    runs = repeated_tokens(LETTERS, runs=5, periods=(6, 12))
    encoded = encode_runs(bert(), LETTERS, runs)
    shown = [index for index, batch in enumerate(encoded.batches) if batch.spans]
    assert shown == [min(range(5), key=lambda index: runs[index].period)]
    assert all(batch.classes is None for batch in encoded.batches)
    assert encode_runs(bert(), LETTERS, ()).documents == ()
    assert len(encode_runs(t5(), LETTERS, runs).batches[shown[0]].spans) == 2


def test_unknown_tokens_are_noted_for_each_text(minilm):
    class Wide(torch.nn.Module):
        """A model of no vocabulary in particular."""

    encoded = encode_texts(Wide(), minilm, default_texts(), max_length=512)
    assert [note.text for note in encoded.notes] == [
        "15 % of the tokens of 07-chinese (74 of 493) are [UNK]: "
        "this tokenizer does not know all of its characters or words"
    ]
    many = [Text(f"text {i}", "𠀀𠀁 a b") for i in range(11)]
    notes = encode_texts(Wide(), minilm, many, max_length=512).notes
    assert len(notes) == 9
    assert notes[-1].text == "so it is in 3 more texts"


def test_chunks_without_room_for_text_are_refused():
    tokenizer = LetterTokenizer(frame=((1, 1), (2, 2)))
    with pytest.raises(MultiheadError, match=r"got: max_length=4, of which special tokens take 4\n  fix: .*=12"):
        encode_texts(bert(), tokenizer, [Text("t", "abc")], max_length=4)


def test_the_same_texts_give_the_same_plan():
    one, two = (encode_texts(bert(), LETTERS, [Text("t", STORY)], max_length=30) for _ in range(2))
    assert [batch.inputs["input_ids"].tolist() for batch in one.batches] == [
        batch.inputs["input_ids"].tolist() for batch in two.batches
    ]
    assert [batch.spans for batch in one.batches] == [batch.spans for batch in two.batches]
