import json
import os

import pytest

from multihead.corpus import Text, read_texts
from multihead.error import MultiheadError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def names(reading):
    return [text.name for text in reading]


def test_one_file_is_one_text(tmp_path):
    file = write(tmp_path / "a.txt", "Grüße\n")
    for given in (file, str(file), [file], (str(file),)):
        reading = read_texts(given)
        assert tuple(reading) == (Text("a.txt", "Grüße\n"),)
        assert reading[0].content == "Grüße\n"
        assert reading[:1] == (reading[0],)
        assert reading.skipped == ()


def test_folders_are_read_through_in_the_order_of_names(tmp_path):
    for name in ("z.txt", "b/2.md", "b/10.txt", "a.TXT", "B.txt"):
        write(tmp_path / name, name)
    assert names(read_texts(tmp_path)) == ["B.txt", "a.TXT", "z.txt", "b/10.txt", "b/2.md"]


def test_paths_keep_the_order_given(tmp_path):
    files = [write(tmp_path / name, name) for name in ("2.txt", "1.txt", "3.rst")]
    assert names(read_texts(files)) == ["2.txt", "1.txt", "3.rst"]


def test_what_a_folder_holds_besides_is_listed_with_its_reason(tmp_path):
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "photo.png", b"\x89PNG\0")
    write(tmp_path / ".secret.txt", "s")
    write(tmp_path / ".git" / "b.txt", "b")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    write(elsewhere / "c.txt", "c")
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    reading = read_texts(tmp_path)
    assert names(reading) == ["a.txt"]
    assert {(skip.path.name, skip.reason) for skip in reading.skipped} == {
        (".git", "hidden folder"),
        ("link", "link to a folder"),
        (".secret.txt", "hidden file"),
        ("gone.txt", "not a regular file"),
        ("photo.png", "not one of .txt, .md, .jsonl"),
    }


def test_a_path_met_twice_is_read_once_and_listed(tmp_path):
    file = write(tmp_path / "a.txt", "a")
    reading = read_texts([tmp_path, file])
    assert names(reading) == ["a.txt"]
    assert [(skip.path, skip.reason) for skip in reading.skipped] == [(file, "it was read already")]


def test_files_of_one_name_are_told_apart(tmp_path):
    for folder in ("x/en", "y/en", "y/de"):
        write(tmp_path / folder / "a.txt", folder)
    write(tmp_path / "x" / "en" / "b.txt", "b")
    reading = read_texts([tmp_path / "x" / "en", tmp_path / "y" / "en", tmp_path / "y" / "de"])
    assert names(reading) == ["x/en/a.txt", "b.txt", "y/en/a.txt", "de/a.txt"]


def test_equal_contents_stay_two_documents(tmp_path):
    write(tmp_path / "a.txt", "same")
    write(tmp_path / "b.txt", "same")
    one, other = read_texts(tmp_path)
    assert one.digest == other.digest
    assert one.name != other.name


def test_rows_of_jsonl_are_documents_named_by_their_line(tmp_path):
    rows = [{"text": "eins"}, {"id": 2, "text": "zwei\r\n"}]
    file = write(tmp_path / "r.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
    assert tuple(read_texts(file)) == (Text("r.jsonl:1", "eins"), Text("r.jsonl:3", "zwei\n"))


def test_byte_order_mark_and_line_ends_are_taken_off(tmp_path):
    plain = read_texts(write(tmp_path / "a.txt", "one\ntwo\n\n"))
    marked = read_texts(write(tmp_path / "b.txt", b"\xef\xbb\xbfone\r\ntwo\r\r\n"))
    assert plain[0].digest == marked[0].digest


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"abc \xe9t\xe9", "at byte offset 4: the byte 0xe9"),
        (b"\xef\xbb\xbfab\xff", "at byte offset 5: the byte 0xff"),
        ("über".encode("utf-16"), "at byte offset 0: a UTF-16 byte order mark"),
        (b"%PDF-1.4 \x00\x01", "at byte offset 9: a NUL byte"),
        (b"", "0 characters, none of them visible"),
        (b" \n\t\n", "4 characters, none of them visible"),
    ],
)
def test_what_is_no_text_is_refused_with_file_and_place(tmp_path, raw, told):
    file = write(tmp_path / "bad.txt", raw)
    with pytest.raises(MultiheadError) as caught:
        read_texts(tmp_path)
    assert told in caught.value.arrived
    assert str(file) in caught.value.asked


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"text": "a"}\n{"text": ', "no JSON"),
        (b'{"text": "a"}\n["text"]', "['text']"),
        (b'{"text": "a"}\n{"content": "b", "n": 1}', "an object with 'content', 'n'"),
        (b'{"text": "a"}\n{}', "an object with no field"),
        (b'{"text": "a"}\n{"text": 3}', 'a "text" that is 3, not a string'),
        (b'{"text": "a"}\n{"text": " "}', "a text without a visible character"),
        (b'{"text": "a"}\n{"text": "b\\ud800"}', "half a surrogate pair at character 1"),
        (b'{"text": "a"}\n' + b"[" * 100_000, "no JSON"),
    ],
)
def test_a_row_without_a_text_is_refused_with_its_line(tmp_path, raw, told):
    file = write(tmp_path / "r.jsonl", raw)
    with pytest.raises(MultiheadError) as caught:
        read_texts(file)
    assert told in caught.value.arrived
    assert f"{file}, line 2" in caught.value.asked


def test_a_byte_offset_in_jsonl_counts_from_the_start_of_the_file(tmp_path):
    file = write(tmp_path / "r.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n')
    with pytest.raises(MultiheadError, match="at byte offset 24: the byte 0xe9"):
        read_texts(file)


def test_jsonl_without_rows_is_refused(tmp_path):
    with pytest.raises(MultiheadError, match="no row"):
        read_texts(write(tmp_path / "r.jsonl", "\n"))


def test_nothing_to_read_is_refused(tmp_path):
    write(tmp_path / "a.png", "x")
    with pytest.raises(MultiheadError, match="with 1 files of other kinds"):
        read_texts(tmp_path)
    with pytest.raises(MultiheadError, match="no path"):
        read_texts([])
    with pytest.raises(MultiheadError, match="nothing of that name exists"):
        read_texts(tmp_path / "missing")


def test_what_may_not_be_read_is_refused(tmp_path, monkeypatch):
    file = write(tmp_path / "folder" / "a.txt", "a")

    def deny(*_):
        raise PermissionError(13, "Permission denied", str(file))

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.read_bytes", deny)
        with pytest.raises(MultiheadError, match=r"a\.txt\n  got: Permission denied"):
            read_texts(file)
    # The super-user may list everything, so the refusal of the system is played.
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", deny)
        with pytest.raises(MultiheadError, match="Permission denied"):
            read_texts(tmp_path / "folder")
