import pytest
import torch

import multihead as mh
from multihead.interop import picture_facts, sound_facts
from multihead.workflow import OpenedModel
from workflow.fakes import LetterTokenizer, bert, hearer, noise, picture, viewer

TEXTS = ["the cat sat on the mat. the cat slept.", "a dog, a hen, a dog."]


def refused(*given, **named):
    """The error of a checkup that must not run the model; its three parts."""
    with pytest.raises(mh.MultiheadError) as caught:
        mh.checkup(*given, **named)
    return caught.value


def test_what_is_no_material_is_refused():
    model, tokenizer = bert(), LetterTokenizer()
    for mixed, names in (
        (["a text", picture()], "Picture, str"),
        ([picture(), noise()], "Picture, Sound"),
    ):
        error = refused(model, tokenizer, mixed)
        assert error.arrived == f"a list of {names}"
        assert "of one kind at a time" in error.remedy
    error = refused(model, tokenizer, [])
    assert (error.arrived, error.remedy) == ("none", "pass some, or leave them out for the default texts")
    assert refused(model, None, TEXTS).arrived == "tokenizer=None"


def test_what_a_model_does_not_read_is_refused_with_what_to_do():
    opened = OpenedModel(model=bert(), tokenizer=LetterTokenizer(), name="b")
    for material, kind in (([picture()], "images"), ([noise()], "audio")):
        error = refused(opened, material=material)
        assert error.asked == f"a model that reads {kind}"
        assert error.arrived == "BertModel, which reads text"
        assert error.remedy == "give it texts (--text), or another model"
    vit = viewer()
    seen = OpenedModel(model=vit, tokenizer=None, name="v", pictures=picture_facts(vit))
    error = refused(seen, material=TEXTS)
    assert error.arrived == "ViTModel, which takes pixel_values"
    assert "--images" in error.remedy
    error = refused(seen)
    assert (error.arrived, error.remedy[:32]) == ("nothing", "give it pictures: --images FOLDE")
    assert "read_images" in error.remedy
    error = refused(seen, material=[picture()], max_length=8)
    assert error.arrived == "max_length=8"
    assert "leave it out" in error.remedy
    whisper = hearer()
    heard = OpenedModel(model=whisper, tokenizer=None, name="w", sounds=sound_facts(whisper))
    assert "--audio FOLDER, or material=read_sounds(paths)" in refused(heard).remedy
    error = refused(heard, material=[picture()])
    assert error.arrived == "WhisperForConditionalGeneration, which reads audio"
    assert error.remedy == "give it recordings (--audio), or another model"
    error = refused(vit, material=[noise()])
    assert error.arrived == "ViTModel, which reads images"
    assert error.remedy == "give it pictures (--images), or another model"


class Strange(torch.nn.Module):
    """A model that has attention and reads neither tokens, pictures nor sound."""

    def __init__(self):
        super().__init__()
        self.attention = mh.MultiHeadAttention(8, heads=2)

    def forward(self, states):
        return self.attention(states)


def test_a_model_that_takes_no_tokens_is_refused():
    error = refused(Strange(), LetterTokenizer(), TEXTS)
    assert error.arrived == "Strange.forward(states)"
    assert "mh.watch" in error.remedy
