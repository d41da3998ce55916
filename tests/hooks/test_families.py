"""Every family once: outputs are untouched, and what is told is what the model computed."""

from pathlib import Path

import pytest

from hooks.families import FAMILIES
from hooks.own import OWN
from hooks.tail import examine, is_sound
from hooks.tail_fallback import FALLBACK
from hooks.tail_seen import SEEN
from multihead.hooks import families, locate

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


LISTED = {family.name: family for family in families()}


@pytest.mark.parametrize("name", list(SEEN))
def test_families_that_are_seen(name):
    outcome = examine(SEEN[name])
    assert (outcome.how, outcome.same) == ("seen", True)
    assert (LISTED[name].how, LISTED[name].reason) == ("seen", "")
    assert outcome.matched == outcome.returned > 0
    assert all(is_sound(call) for call in outcome.calls)


@pytest.mark.parametrize("name", [name for name in FALLBACK if name not in NOT])
def test_families_that_are_seen_by_fallback(name):
    outcome = examine(FALLBACK[name])
    assert (outcome.how, outcome.same) == ("partly" if name in PARTLY else "fallback", True)
    assert PARTLY.get(name, "") in outcome.reason
    assert (LISTED[name].how, LISTED[name].reason) == (outcome.how, outcome.reason)
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
    assert (LISTED[name].how, LISTED[name].reason) == ("not seen", outcome.reason)


@pytest.mark.parametrize("name", list(OWN))
def test_attention_people_write_themselves(name):
    outcome = examine(OWN[name])
    assert (outcome.how, outcome.same) == (LISTED[name].how, True)
    assert outcome.calls
    assert all(is_sound(call) for call in outcome.calls)


def test_every_family_that_is_tried_is_listed_and_no_other():
    assert list(LISTED) == [*FAMILIES, *SEEN, *FALLBACK, *OWN]
    assert {LISTED[name].how for name in FAMILIES} == {"seen"}
    assert all(family.reason for family in families() if family.how in ("partly", "not seen"))


def test_the_page_says_the_same_as_the_list():
    page = (Path(__file__).parents[2] / "docs/families.md").read_text(encoding="utf-8")
    titles = {"seen": "Seen", "fallback": "Seen by fallback", "partly": "Partly seen", "not seen": "Not seen"}
    for how, title in titles.items():
        count = sum(family.how == how for family in families())
        section = page.partition(f"## {title} ({count})\n")[2].partition("\n## ")[0]
        named = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
        assert named[1:] == [family.name for family in families() if family.how == how]
