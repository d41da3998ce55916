import pytest
import torch

from multihead.error import MultiheadError
from multihead.pattern import (
    after_same_token,
    band,
    block_band,
    causal,
    chunk,
    dilated,
    distance,
    document,
    every,
    everything,
    global_blocks,
    global_tokens,
    grid_window,
    keys_at,
    keys_every,
    longformer,
    neighbourhood,
    nothing,
    padding,
    pairs,
    parse_pattern,
    per_head,
    prefix,
    random_blocks,
    random_pairs,
    same_token,
    sliding_window,
    strided,
)

A, B, C = causal(), band(2, 2), distance(-1)
IDS = torch.tensor([[0, 1, 1], [2, 2, 0]])


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (causal(), "causal"),
        (everything(), "everything"),
        (nothing(), "nothing"),
        (sliding_window(256), "sliding_window(256)"),
        (band(2, 3), "band(2, 3)"),
        (prefix(7), "prefix(7)"),
        (distance(-1), "distance(-1)"),
        (global_tokens([5, 0]), "global_tokens([0, 5])"),
        (keys_at([]), "keys_at([])"),
        (per_head([causal(), ~causal()]), "per_head(causal, ~causal)"),
        (A & B, "causal & band(2, 2)"),
        (A & B | C, "causal & band(2, 2) | distance(-1)"),
        (A & (B | C), "causal & (band(2, 2) | distance(-1))"),
        (~(A & B), "~(causal & band(2, 2))"),
        (~A & B, "~causal & band(2, 2)"),
        (A.at(q_offset=3), "causal.at(3)"),
        (~A.at(q_offset=-3), "~causal.at(-3)"),
        ((A & B).at(q_offset=3), "(causal & band(2, 2)).at(3)"),
        (prefix(7).at(q_offset=3, k_offset=4), "prefix(7).at(3, 4)"),
        (prefix(7).at(k_offset=-4), "prefix(7).at(0, -4)"),
        ((prefix(7) | prefix(9)).at(q_offset=2, k_offset=2), "prefix(7).at(2, 2) | prefix(9).at(2, 2)"),
        (
            (A & keys_at([4]) & prefix(9)).at(q_offset=2, k_offset=2),
            "causal & keys_at([4]).at(0, 2) & prefix(9).at(2, 2)",
        ),
        (A.at(k_offset=3), "causal.at(-3)"),
        (every(4), "every(4)"),
        (dilated(3, 2), "dilated(3, 2)"),
        (keys_every(4, -1), "keys_every(4, -1, 1)"),
        (chunk(8), "chunk(8)"),
        (chunk(8).at(q_offset=17, k_offset=19), "chunk(8).at(1, 3)"),
        (block_band(8, 1, 0), "block_band(8, 1, 0)"),
        (global_blocks(8, [2, 0]), "global_blocks(8, [0, 2])"),
        (neighbourhood(4, 5, 3), "neighbourhood(4, 5, 3)"),
        (grid_window(4, 5, 3, dilation=2), "grid_window(4, 5, 3, 2)"),
        (random_blocks(8, 2, seed=3, length=64), "random_blocks(8, 2, 3, 0, 0, 64)"),
        (random_pairs(0.25, seed=3), "random_pairs(0.25, 3)"),
        (strided(4), "causal & every(4) | sliding_window(4)"),
        (longformer(4, [0]), "band(2, 2) | global_tokens([0])"),
        (A & B.at(q_offset=3), "causal & band(2, 2).at(3)"),
        ((A | keys_at([0])).at(q_offset=3), "(causal | keys_at([0])).at(3)"),
        (per_head([A | B, C]).at(q_offset=1), "per_head(causal.at(1) | band(2, 2).at(1), distance(-1).at(1))"),
    ],
)
def test_printed_and_read_back(pattern, text):
    assert str(pattern) == text
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("causal|band(2,2)&distance(-1)", A | (B & C)),
        ("~causal&band(2,2)", (~A) & B),
        ("~(causal|band(2,2))", ~(A | B)),
        ("~~causal", A),
        ("~~~causal", ~A),
        ("(((causal)))", A),
        ("causal()", A),
        ("  causal\t&\n band( 2 ,2 )  ", A & B),
        ("causal.at(2).at(3)", A.at(q_offset=5)),
        ("~causal.at(2)", ~(A.at(q_offset=2))),
        ("(~causal).at(2)", ~(A.at(q_offset=2))),
        ("everything.at(2)", everything()),
        ("causal.at(2, 2)", causal()),
        ("prefix(9).at( 2 ,3 ).at(1, 1)", prefix(9).at(q_offset=3, k_offset=4)),
        ("(causal & prefix(9)).at(2, 3)", causal().at(q_offset=-1) & prefix(9).at(q_offset=2, k_offset=3)),
        ("random_pairs( 0.50 ,3 )", random_pairs(0.5, seed=3)),
        ("random_blocks(8, 2, 3, 1)", random_blocks(8, 2, seed=3, near=1)),
        ("causal & sliding_window(256)", A & sliding_window(256)),
    ],
)
def test_read(text, pattern):
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        document(IDS),
        document(IDS[0]),
        document(IDS, keys=IDS[:, :2]),
        same_token(IDS),
        after_same_token(IDS[0], keys=IDS),
        padding(IDS.bool()),
        pairs([(3, 1), (0, 2)]),
        pairs([[(3, 1)], [], [(0, 2)]]),
        causal() & document(IDS) & padding(IDS.bool()) | ~pairs([(1, 1)]).at(q_offset=2),
    ],
)
def test_what_holds_data_is_named_by_its_content(pattern):
    data = pattern.data
    for name in data:
        assert f"#{name}" in str(pattern)
        assert len(name) == 8
    assert parse_pattern(str(pattern), data=data) == pattern


def test_names_depend_on_content_alone():
    assert str(document(IDS)) == str(document(IDS.int().clone()))
    assert str(document(IDS)) != str(document(IDS[:1]))
    assert str(document(IDS.flatten())) != str(document(IDS))


def test_a_name_of_your_own_is_not_checked():
    assert parse_pattern("document(#3f2a)", data={"3f2a": IDS}) == document(IDS)
    assert parse_pattern("document(#queries, #keys)", {"queries": IDS, "keys": IDS + 1}) == document(IDS, keys=IDS + 1)
    assert parse_pattern("pairs(#arcs)", {"arcs": torch.tensor([[2, 1], [0, 1]])}) == pairs([(0, 1), (2, 1)])
    assert parse_pattern("pairs(#arcs, 2)", {"arcs": torch.tensor([[1, 0, 1]])}) == pairs([[], [(0, 1)]])


EXAMPLE = "a pattern in text form, such as causal & sliding_window(256)"


@pytest.mark.parametrize(
    ("text", "place", "found", "remedy"),
    [
        ("", 1, "the end", "put a pattern here"),
        ("   ", 4, "the end", "put a pattern here"),
        ("causal &", 9, "the end", "put a pattern here"),
        ("causal band(1, 1)", 8, "'band'", "join patterns with & or |"),
        ("causal)", 7, "')'", "close the parentheses"),
        ("(causal", 8, "the end", "put ')' here"),
        ("& causal", 1, "'&'", "put a pattern here"),
        ("causal && causal", 9, "'&'", "put a pattern here"),
        ("causal ^ causal", 8, "'^'", "whole numbers"),
        ("__import__('os')", 12, '"\'"', "names of patterns"),
        ("__import__(os)", 1, "'__import__'", "there are causal"),
        ("slidng_window(4)", 1, "'slidng_window'", "did you mean sliding_window?"),
        ("~5", 2, "'5'", "put a pattern here"),
        ("causal.shift(4)", 8, "'shift'", "write at(n)"),
        ("causal.at 4", 11, "'4'", "put '(' here"),
        ("causal.at(x)", 11, "'x'", "put a whole number here"),
        ("causal.at(4", 12, "the end", "put ')' here"),
        ("band(1 2)", 8, "'2'", "put ',' here"),
        ("band(1,)", 8, "')'", "put a pattern here"),
        ("global_tokens([1 2])", 18, "'2'", "put ',' here"),
        ("global_tokens([1, causal])", 19, "'causal'", "put a whole number here"),
        ("sliding_window(2.5)", 1, "sliding_window with decimal", "it takes number"),
        ("causal.at(2.5)", 11, "'2.5'", "put a whole number here"),
        ("sliding_window(2.)", 17, "'.'", "put ',' here"),
        ("causal.at(2, x)", 14, "'x'", "put a whole number here"),
        ("causal.at(2, 3, 4)", 15, "','", "put ')' here"),
        ("random_pairs(1, 2)", 1, "random_pairs with number, number", "it takes decimal, number"),
        ("neighbourhood(4, 4)", 1, "neighbourhood with number, number", "number, number, number, [number]"),
        ("random_blocks(4, 1, 2, [0])", 1, "random_blocks with number, number, number, list", "[number], [number]"),
        ("callable(#mine)", 10, "#mine", "pass data={'mine': function}; there is no data"),
        ("sliding_window(" + "9" * 5000 + ")", 16, "'9", "up to 2**40"),
        ("sliding_window", 1, "sliding_window with no arguments", "it takes number"),
        ("band(1)", 1, "band with number", "it takes number, number"),
        ("causal(3)", 1, "causal with number", "it takes no arguments"),
        ("document(3)", 1, "document with number", "it takes #data, [#data]"),
        ("per_head()", 1, "per_head with no arguments", "it takes pattern, ..."),
        ("per_head(causal, 3)", 1, "per_head with pattern, number", "it takes pattern, ..."),
        ("global_tokens(3)", 1, "global_tokens with number", "it takes list"),
        ("causal & document(#ab)", 19, "#ab", "pass data={'ab': tensor}; there is no data"),
        ("~" * 3 + "(" * 60 + "causal", 44, "'('", "at most 39 deep"),
    ],
)
def test_the_fault_and_its_place(text, place, found, remedy):
    with pytest.raises(MultiheadError) as error:
        parse_pattern(text)
    assert error.value.asked == EXAMPLE
    assert error.value.arrived.startswith(found)
    assert f" at character {place} of " in error.value.arrived
    assert len(error.value.arrived) < 160 or "9999" in error.value.arrived
    assert remedy in error.value.remedy


def test_a_long_text_is_quoted_around_the_fault():
    with pytest.raises(MultiheadError, match=r"character 901 of '\.\.\.( & causal){3} & \$( & causal){3} &\.\.\.'"):
        parse_pattern("causal & " * 100 + "$" + " & causal" * 100)


def test_the_depth_that_is_allowed_can_be_read():
    assert parse_pattern("(" * 39 + "causal" + ")" * 39) == causal()


def test_errors_of_a_factory_tell_the_place():
    with pytest.raises(MultiheadError) as error:
        parse_pattern("causal & sliding_window(0)")
    assert error.value.asked.startswith("sliding_window(w)")
    assert error.value.arrived == "0, at character 10"
    with pytest.raises(MultiheadError, match=r"pairs.*\n.*of shape .2, 3., at character 1"):
        parse_pattern("pairs(#2)", {"2": IDS})
    with pytest.raises(MultiheadError, match=r"last line .1, 2, 2., at character 1"):
        parse_pattern("pairs(#2, 1)", {"2": torch.tensor([[1, 2, 2]])})
    with pytest.raises(MultiheadError, match=r"number of batch rows.*\n.*got: 0, at character 1"):
        parse_pattern("pairs(#2, 0)", {"2": torch.tensor([[1, 2, 2]])})


def test_a_hash_must_be_that_of_the_tensor():
    name = next(iter(document(IDS).data))
    with pytest.raises(MultiheadError) as error:
        parse_pattern(f"document(#{name})", {name: IDS + 1})
    assert error.value.arrived.startswith(f"#{name}, a content hash, at character 10 of ")
    assert f"the one given is #{next(iter(document(IDS + 1).data))}" in error.value.remedy
    with pytest.raises(MultiheadError) as error:
        parse_pattern("document(#mine)", {"yours": IDS, "ours": IDS})
    assert error.value.remedy == "pass data={'mine': tensor}; there is yours, ours"


@pytest.mark.usefixtures("unhooked")
def test_a_list_is_no_tensor():
    with pytest.raises(MultiheadError, match="#mine, which is list, at character 10"):
        parse_pattern("document(#mine)", {"mine": [0, 1]})
