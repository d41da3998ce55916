import pytest
from hypothesis import given
from hypothesis import strategies as st

from multihead.corpus import CLASSES, frame_of, ordinary_tokens, repeated_tokens, token_classes
from multihead.error import MultiheadError


@given(
    seed=st.integers(0, 10**9),
    runs=st.integers(1, 5),
    repeats=st.integers(2, 5),
    shortest=st.integers(2, 9),
    more=st.integers(0, 9),
)
def test_a_run_is_one_block_of_distinct_tokens_repeated(seed, runs, repeats, shortest, more):
    allowed = [3, 5, *range(100, 140)]
    made = repeated_tokens(allowed, runs=runs, periods=(shortest, shortest + more), repeats=repeats, seed=seed)
    assert [run.name for run in made] == [f"repeated-{i:02}" for i in range(runs)]
    for run in made:
        assert shortest <= run.period <= shortest + more
        assert run.start == 0
        assert len(run.ids) == run.period * repeats
        block = run.ids[: run.period]
        assert len(set(block)) == run.period
        assert set(block) <= set(allowed)
        assert all(run.ids[i] == block[i % run.period] for i in range(len(run.ids)))


def test_runs_depend_on_seed_and_number_alone(seed):
    few = repeated_tokens(range(500), runs=3, seed=seed)
    assert repeated_tokens(range(500), runs=9, seed=seed)[:3] == few
    assert repeated_tokens(range(499, -1, -1), runs=3, seed=seed) == few
    assert repeated_tokens(range(500), runs=3, seed=seed + 1) != few
    assert len({run.digest for run in few}) == 3


def test_known_run():
    """The same on every machine: records of different days are compared by the digest."""
    assert repeated_tokens(range(10), runs=1, periods=(5, 5), repeats=2)[0].ids == (4, 3, 9, 7, 0) * 2


def test_draws_are_uniform_and_periods_differ(seed):
    runs = repeated_tokens(range(50), runs=2000, periods=(5, 15), repeats=2, seed=seed)
    tokens = [token for run in runs for token in run.ids[: run.period]]
    share = len(tokens) / 50  # about 400
    assert all(abs(tokens.count(token) - share) < 6 * share**0.5 for token in range(50))
    assert {run.period for run in runs} == set(range(5, 16))


@pytest.mark.parametrize("name", ["minilm", "smiles"])
def test_runs_of_a_tokenizer_are_framed_and_hold_ordinary_tokens(name, request):
    tokenizer = request.getfixturevalue(name)
    before, after = frame_of(tokenizer)
    classes = token_classes(tokenizer)
    for run in repeated_tokens(tokenizer, runs=3, max_length=256):
        assert run.ids[: run.start] == before
        assert run.ids[len(run.ids) - len(after) :] == after
        inner = run.ids[run.start : run.start + run.period * run.repeats]
        assert len(inner) + len(before) + len(after) == len(run.ids) <= 256
        kinds = {CLASSES[classes.table[token]] for token in inner}
        assert kinds <= {"word_start", "continuation", "punctuation", "digit"}


def test_frames_are_those_of_the_models(minilm, smollm2, smiles):
    assert frame_of(minilm) == ((101,), (102,))
    assert frame_of(smollm2) == ((1,), ())
    assert frame_of(smiles) == ((12,), (13,))


def test_ordinary_tokens_of_minilm(minilm):
    ordinary = set(ordinary_tokens(minilm))
    vocabulary = minilm.get_vocab()
    assert vocabulary["[unused5]"] not in ordinary
    assert vocabulary["[MASK]"] not in ordinary
    assert {vocabulary["the"], vocabulary["##s"], vocabulary["7"], vocabulary[","]} <= ordinary


def test_short_models_get_shorter_blocks_of_differing_periods():
    runs = repeated_tokens(range(100), runs=200, max_length=64)
    assert {run.period for run in runs} == set(range(5, 17))
    assert max(len(run.ids) for run in runs) == 64


def test_errors_name_the_numbers():
    with pytest.raises(MultiheadError, match=r"runs=0, repeats=4, periods=\(20, 60\)"):
        repeated_tokens(range(100), runs=0)
    with pytest.raises(MultiheadError, match=r"periods=\(9, 3\)"):
        repeated_tokens(range(100), periods=(9, 3))
    with pytest.raises(MultiheadError, match="repeats=1"):
        repeated_tokens(range(100), repeats=1)
    with pytest.raises(MultiheadError, match="max_length=7"):
        repeated_tokens(range(100), max_length=7)
    with pytest.raises(MultiheadError, match=r"blocks of up to 60 distinct tokens\n  got: 30 tokens to draw from"):
        repeated_tokens(range(30))


def test_a_tokenizer_without_special_tokens_frames_nothing(smiles):
    class Bare(type(smiles)):
        cls_token_id = property(lambda _: None, lambda *_: None)

    assert frame_of(Bare(list(smiles.get_vocab()))) == ((), ())
