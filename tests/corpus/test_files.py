import os
from pathlib import Path

import pytest

from multihead.corpus.files import bytes_of, find_files, shown_name
from multihead.error import MultiheadError


def read(path, name):
    return name, path.read_text()


def find(paths):
    return find_files(paths, suffixes=(".a", ".b"), kind="things", read=read)


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"of {name}")


def test_folders_are_read_in_the_order_of_names_and_the_rest_is_listed(tmp_path):
    fill(tmp_path, "2.a", "1.B", "sub/3.a", "sub/notes.txt", ".hidden.a", ".git/4.a", "sub/2.a")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe.a")
    found = find(tmp_path)
    assert found.names == ("1.B", "2.a", "sub/2.a", "sub/3.a")
    assert len(found) == 4
    assert found[1] == ("2.a", "of 2.a")
    assert found[2:] == (("sub/2.a", "of sub/2.a"), ("sub/3.a", "of sub/3.a"))
    assert next(iter(found)) == ("1.B", "of 1.B")
    assert {s.path.relative_to(tmp_path).as_posix(): s.reason for s in found.skipped} == {
        ".git": "hidden folder",
        "loop": "link to a folder",
        ".hidden.a": "hidden file",
        "pipe.a": "not a regular file",
        "sub/notes.txt": "not one of .a, .b",
    }


def test_a_file_named_by_itself_is_read_whatever_its_ending_and_once(tmp_path):
    fill(tmp_path, "x/1.a", "y/1.a", "other.txt")
    found = find([tmp_path / "other.txt", str(tmp_path / "x"), tmp_path / "y", tmp_path / "x" / "1.a"])
    assert found.names == ("other.txt", "x/1.a", "y/1.a")
    assert [s.reason for s in found.skipped] == ["it was read already"]
    assert find(str(tmp_path / "other.txt")).names == ("other.txt",)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(MultiheadError, match=r"things from .*nowhere\n  got: nothing of that name"):
        find(tmp_path / "nowhere")
    fill(tmp_path, "1.txt")
    with pytest.raises(MultiheadError, match=r"folders with \*\.a, \*\.b\n  got: .* with 1 files of other kinds"):
        find(tmp_path)
    with pytest.raises(MultiheadError, match="got: no path, with 0 files"):
        find([])
    with pytest.raises(MultiheadError, match=r"a thing in .*absent"):
        bytes_of(tmp_path / "absent", kind="a thing")


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(path, onerror):
        fault = PermissionError(13, "Permission denied", str(path))
        onerror(fault)
        return iter(())

    monkeypatch.setattr(os, "walk", refuse)
    with pytest.raises(MultiheadError, match=r"the files of the folder .*\n  got: Permission denied"):
        find(tmp_path)


def test_names_are_shown_without_what_acts_on_a_terminal():
    assert shown_name(os.fsdecode(b"a\xff\x1b.png")) == r"a\xff\x1b.png"
    assert shown_name("日本.png") == "日本.png"
    assert Path(shown_name("a/b")) == Path("a/b")
