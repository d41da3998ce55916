"""Every family once: outputs are untouched, and what is told is what the model computed."""

import pytest

from hooks.tail import examine, is_sound
from hooks.tail_fallback import FALLBACK
from hooks.tail_seen import SEEN
from multihead.hooks import locate

# What cannot be told, and why.
PARTLY = {
    "led": "its weights go through transpose after the softmax",
    "prophetnet": "its softmax has 5 dimensions",
}
NOT = {
    "longformer": "its weights go through transpose after the softmax",
    "nystromformer": "its weights go through sum after the softmax",
    "hiera": "its softmax has 5 dimensions",
    "vits-text": "its weights go through pad after the softmax",
    "sew-d": "no function of torch",
    "reformer": "no function of torch",
}
# Models that return no weights, or not those of every layer.
SILENT = {"mobilevit", "cvt", "pvt-v2", "levit"}


@pytest.mark.parametrize("name", list(SEEN))
def test_families_that_are_seen(name):
    outcome = examine(SEEN[name])
    assert (outcome.how, outcome.same) == ("fallback" if name == "siglip" else "seen", True)
    assert outcome.matched == outcome.returned > 0
    assert all(is_sound(call) for call in outcome.calls)


@pytest.mark.parametrize("name", [name for name in FALLBACK if name not in NOT])
def test_families_that_are_seen_by_fallback(name):
    outcome = examine(FALLBACK[name])
    assert (outcome.how, outcome.same) == ("partly" if name in PARTLY else "fallback", True)
    assert PARTLY.get(name, "") in outcome.reason
    assert all(is_sound(call) for call in outcome.calls)
    unseen = outcome.returned - outcome.matched
    assert unseen == (2 if name == "led" else 0)
    assert outcome.returned > 0 or name in SILENT
    located = {entry.site for entry in locate(outcome.model)}
    told = {call.site for call in outcome.calls if call.site.repeat == 0}
    assert told <= located
    assert all(entry.how == "fallback" for entry in locate(outcome.model))


@pytest.mark.parametrize("name", list(NOT))
def test_families_that_are_not_seen_say_why(name):
    outcome = examine(FALLBACK[name])
    assert (outcome.how, outcome.same) == ("not seen", True)
    assert NOT[name] in outcome.reason
