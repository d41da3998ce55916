import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from hooks.families import FAMILIES, randomise
from interop.test_facts import HEARERS
from multihead.corpus import CLASSES, Sound, is_installed, read_sounds
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.interop import log_mel, sound_facts
from multihead.measure import observe
from multihead.workflow import open_model
from multihead.workflow.sounds import encode_sounds, loud_places
from multihead.workflow.transcribe import transcribe
from workflow.fakes import LetterTokenizer

RATE = 16000


def noise(seconds, *, name="n", rate=RATE, quiet=()):
    samples = 0.3 * torch.randn(int(seconds * rate))
    for start, end in quiet:
        samples[int(start * rate) : int(end * rate)] = 0
    return Sound(name, samples, rate)


def whisper(places=100, words=40, **told):
    config = FAMILIES["whisper"].config()
    config.max_source_positions, config.vocab_size = places, words
    model = hf.WhisperForConditionalGeneration(config).eval()
    randomise(model)
    for name, value in {"eos_token_id": 2, **told}.items():
        setattr(model.generation_config, name, value)
    return model


class Pieces(LetterTokenizer):
    """Tokens of which some begin with a space."""

    def decode(self, ids):
        return "".join(" x" if i % 3 == 0 else "y" for i in ids)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.99, 2.0, 2.05, 4.5])
def test_a_recording_is_cut_into_chunks_of_one_document(seconds):
    model = whisper()  # 100 places of 20 ms: 2 s
    encoded = encode_sounds(model, sound_facts(model), [noise(seconds), noise(0.5, name="two")])
    chunks = {0.3: 1, 1.0: 1, 1.99: 1, 2.0: 1, 2.05: 1, 4.5: 3}[seconds]  # a rest of 0.05 s is left out
    assert [b.document for b in encoded.batches] == [(0,)] * chunks + [(1,)]
    for batch in encoded.batches:
        assert batch.inputs["input_features"].shape == (1, 8, 200)
        assert batch.classes["input_features"].shape == (1, 100)
        assert batch.classes["decoder_input_ids"].shape == batch.inputs["decoder_input_ids"].shape
    total = sum(100 + b.inputs["decoder_input_ids"].shape[1] for b in encoded.batches[:-1])
    assert [d.tokens for d in encoded.documents] == [
        total,
        100 + encoded.batches[-1].inputs["decoder_input_ids"].shape[1],
    ]
    assert [d.name for d in encoded.documents] == ["n", "two"]
    assert encoded.targets == {}


def test_silence_is_what_is_quiet_and_what_comes_after_the_end():
    model = whisper()
    encoded = encode_sounds(model, sound_facts(model), [noise(1.5, quiet=[(0.4, 0.8)])], tokenizer=Pieces())
    names = encoded.classes.names
    assert names == (*CLASSES, "sound", "silence")
    told = [names[n] for n in encoded.batches[0].classes["input_features"][0]]
    assert told == ["sound"] * 20 + ["silence"] * 20 + ["sound"] * 35 + ["silence"] * 25
    assert loud_places(torch.zeros(640), stride=320, places=3, loudest=0.0).tolist() == [False] * 3


def test_features_are_those_of_the_feature_extractor_at_the_models_rate():
    model = whisper()
    facts = sound_facts(model)
    tone = Sound("t", torch.sin(2 * torch.pi * 440 * torch.arange(48000) / 48000), 48000)
    made = encode_sounds(model, facts, [tone]).batches[0].inputs["input_features"][0]
    same = torch.sin(2 * torch.pi * 440 * torch.arange(16000) / 16000)
    extractor = hf.WhisperFeatureExtractor(feature_size=8)
    theirs = extractor(same.numpy(), sampling_rate=RATE, max_length=32000, return_tensors="pt")["input_features"][0]
    # Resampling moves the edges and what lies 80 dB below; the tone itself and the rest agree.
    assert made.shape == theirs.shape
    assert float((made - theirs)[:, 5:95].abs().mean()) < 0.05
    torch.testing.assert_close(log_mel(same, facts=facts), theirs)


def greedy(model, features, start, *, never, first, count):
    """What is likeliest, the slow way: the whole sequence anew for each token."""
    ids = list(start)
    while len(ids) < count:
        with torch.no_grad():
            logits = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        banned = {*never, *(first if len(ids) == len(start) else ())}
        token = max((float(v), -i) for i, v in enumerate(logits) if i not in banned)[1] * -1
        if token == 2:
            break
        ids.append(token)
    return ids[len(start) :]


def test_the_decoder_reads_what_the_model_writes(seed):
    model = whisper(suppress_tokens=[5, 6], begin_suppress_tokens=[2, 7], no_timestamps_token_id=33)
    for _ in range(3):
        features = torch.randn(1, 8, 200)
        start, written = transcribe(model, features, longest=12)
        assert start == [2, 33]
        slow = greedy(model, features, start, never={5, 6, *range(33, 40)}, first={2, 7}, count=14)
        assert written == slow[: len(written)]
        assert written
        assert len(written) == len(slow) or slow[len(written) :]  # a loop is cut after its first copy


def test_languages_are_asked_for_first():
    model = whisper(lang_to_id={"<|en|>": 10, "<|zh|>": 11}, task_to_id={"transcribe": 12, "translate": 13})
    features = torch.randn(1, 8, 200)
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=torch.tensor([[2]])).logits[0, -1]
    assert transcribe(model, features, longest=2)[0] == [2, 10 if logits[10] >= logits[11] else 11, 12]


def test_loops_are_cut_and_the_table_of_positions_is_kept_to():
    model = whisper()
    with torch.no_grad():
        model.proj_out.weight.zero_()  # every token is as likely: the first is written for ever
    assert transcribe(model, torch.randn(1, 8, 200)) == ([2], [0])
    random = whisper(begin_suppress_tokens=[2], suppress_tokens=[2])
    _, written = transcribe(random, torch.randn(1, 8, 200))
    assert len(written) <= 31


def test_models_without_a_layer_that_writes():
    model = hf.WhisperModel(whisper().config).eval()
    encoded = encode_sounds(model, sound_facts(model), [noise(1)])
    assert encoded.batches[0].inputs["decoder_input_ids"].tolist() == [[2]]
    assert len(encoded.batches[0].spans) == 1


def test_spans_are_moments_and_words():
    model = whisper(places=150, begin_suppress_tokens=[2])
    encoded = encode_sounds(model, sound_facts(model), [noise(1.2, name=str(n)) for n in range(5)])
    assert [len(b.spans) for b in encoded.batches] == [2, 2, 2, 2, 0]
    moments, words = encoded.batches[0].spans
    assert (moments.side, moments.start, moments.grid) == ("input_features", 0, (1, 3))
    assert moments.units == (0,) * 25 + (1,) * 25 + (2,) * 25
    assert moments.texts == ("0.0 s", "0.5 s", "1.0 s")
    with Image.open(io.BytesIO(moments.picture)) as shown:
        assert shown.size == (150, 8)
        ink = 255 - np.asarray(shown.convert("L")).astype(int)
    assert ink[:, :120].mean() > ink[:, 125:].mean() + 50  # silence after 1.2 s is white
    assert words.side == "decoder_input_ids"
    assert words.start == 1
    assert len(words.units) == encoded.batches[0].inputs["decoder_input_ids"].shape[1] - 1
    assert words.texts == tuple(str(i) for i in encoded.batches[0].inputs["decoder_input_ids"][0, 1:].tolist())


def test_words_begin_where_a_token_begins_with_a_space():
    model = whisper(begin_suppress_tokens=[2])
    encoded = encode_sounds(model, sound_facts(model), [noise(1)], tokenizer=Pieces())
    span = encoded.batches[0].spans[1]
    ids = encoded.batches[0].inputs["decoder_input_ids"][0, 1:].tolist()
    assert "".join(span.texts) == Pieces().decode(ids).replace(" ", "")
    starts = [n for n, i in enumerate(ids) if not n or i % 3 == 0]
    assert [span.units.index(u) for u in range(len(span.texts))] == starts


@pytest.mark.parametrize("name", ["wav2vec2", "wav2vec2_letters", "hubert"])
def test_models_of_samples(name):
    model = HEARERS[name]()
    randomise(model)
    facts = sound_facts(model)
    sound = Sound("s", 0.2 * torch.randn(2400) + 0.1, RATE)
    encoded = encode_sounds(model.eval(), facts, [sound])
    (batch,) = encoded.batches
    fed = batch.inputs["input_values"]
    extractor = hf.Wav2Vec2FeatureExtractor(do_normalize=True)
    torch.testing.assert_close(
        fed,
        extractor(sound.samples.numpy(), sampling_rate=RATE, return_tensors="pt")["input_values"],
        rtol=0,
        atol=1e-5,
    )
    seen = set()
    with torch.no_grad(), watching(model, lambda call: seen.add(call.problem.kv_len)):
        model(**batch.inputs)
    assert seen == {batch.classes["input_values"].shape[1]} == {encoded.documents[0].tokens}
    assert encoded.classes.names == ("sound", "silence")
    assert len(batch.spans[0].units) == encoded.documents[0].tokens
    assert observe(model, encoded.batches, documents=encoded.documents).value("entropy").shape == (4,)


def test_complaints():
    model = whisper()
    with pytest.raises(MultiheadError, match="got: 0 recordings for Whisper"):
        encode_sounds(model, sound_facts(model), [])
    with pytest.raises(MultiheadError, match="got: 1 recordings for BertModel"):
        encode_sounds(FAMILIES["bert"].build(), sound_facts(model), [noise(1)])


def test_flags_are_put_back():
    model = whisper()
    model.model.decoder.train()
    encode_sounds(model, sound_facts(model), [noise(1)])
    assert model.model.decoder.training
    assert not model.model.encoder.training


def test_whisper_writes_little_of_silence():
    if not is_installed("whisper-tiny"):
        pytest.skip("not installed: multihead models --get whisper-tiny")
    opened = open_model("whisper-tiny")
    assert opened.reads == "audio"
    encoded = encode_sounds(
        opened.model, opened.sounds, [Sound("quiet", torch.zeros(RATE), RATE)], tokenizer=opened.tokenizer
    )
    ids = encoded.batches[0].inputs["decoder_input_ids"][0].tolist()
    assert ids[:2] == opened.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    assert opened.tokenizer.decode(ids[2:]).strip().lower() == "you"  # what this model is known to hear in silence
    assert set(encoded.batches[0].classes["input_features"][0].tolist()) == {encoded.classes.names.index("silence")}


@pytest.mark.slow
def test_whisper_writes_what_is_said():
    spec = importlib.util.find_spec("moonshine_voice")
    if spec is None or not is_installed("whisper-tiny"):
        pytest.skip(
            "not installed: pip install --no-deps moonshine-voice==0.1.5 and multihead models --get whisper-tiny"
        )
    folder = Path(spec.submodule_search_locations[0], "assets")
    opened = open_model("whisper-tiny")
    sounds = read_sounds([folder / "beckett.wav", folder / "two_cities.wav"])
    encoded = encode_sounds(opened.model, opened.sounds, sounds, tokenizer=opened.tokenizer)
    said = [opened.tokenizer.decode(b.inputs["decoder_input_ids"][0, 2:]).strip() for b in encoded.batches]
    assert said[0] == "Ever tried, ever failed. No matter, try again. Fail again. Fail better."
    assert said[1].startswith("It was the best of times, it was the worst of times. It was the age of wisdom,")
    assert len(said) == 3
    assert encoded.batches[0].spans[1].texts[:2] == ("Ever", "tried,")
