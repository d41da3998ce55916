import collections
import hashlib
import re

import pytest

from multihead.corpus import Text, default_texts


def test_digest_is_the_beginning_of_sha256_of_the_content():
    text = Text("名", "水\n")
    assert text.digest == hashlib.sha256("水\n".encode()).hexdigest()[:16]
    assert text == Text("名", "水\n")
    assert text != Text("other", "水\n")


def test_a_text_cannot_be_changed():
    with pytest.raises(AttributeError):
        Text("a", "b").content = "c"


def test_default_texts_come_in_order_and_are_distinct():
    texts = default_texts()
    assert [text.name for text in texts] == [
        "01-prose",
        "02-essay",
        "03-dialogue",
        "04-code",
        "05-recipe",
        "06-numbers",
        "07-chinese",
        "08-german",
    ]
    assert len({text.digest for text in texts}) == 8
    assert texts == default_texts()


def test_default_texts_fill_but_fit_a_bert(minilm):
    for text in default_texts():
        count = len(minilm(text.content)["input_ids"])
        assert 350 <= count <= 512, f"{text.name} has {count} tokens"


def test_default_texts_come_back_to_their_names():
    """Heads that look for an earlier copy of a word need words that return."""
    for text in default_texts():
        words = re.findall(r"[a-zäöüß]{4,}|[一-鿿]", text.content.lower())
        often = [word for word, count in collections.Counter(words).items() if count >= 3]
        assert len(often) >= 5, text.name


def test_the_code_text_runs_and_its_figures_add_up(capsys):
    code = next(text.content for text in default_texts() if text.name == "04-code")
    exec(compile(code, "04-code.txt", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines()[0] == "day 0: cactus       0.23 litres"


def test_the_report_adds_up():
    report = next(text.content for text in default_texts() if text.name == "06-numbers")
    rows = {line.split()[0]: line.split()[1:] for line in report.splitlines()[3:9]}
    months = {name: [int(cell.replace(",", "")) for cell in cells[:3]] for name, cells in rows.items()}
    total = months.pop("Total")
    assert total == [sum(column) for column in zip(*months.values(), strict=True)]


def test_names_can_be_shown_whatever_bytes_they_hold():
    name = b"caf\xe9 \x1b[31mred\n.txt".decode("utf-8", "surrogateescape")
    assert Text(name, "words").name == r"caf\xe9 \x1b[31mred\n.txt"
    assert Text("文章 ü.txt", "words").name == "文章 ü.txt"
