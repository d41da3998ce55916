import pytest

from multihead.advice import MeasuredCost, Sizes, break_even, estimate_cost
from multihead.cli import run
from multihead.cli import variants as door
from multihead.layer import FAMILIES


def test_it_tells_every_kind(told):
    code, data, _ = told("variants", "--embed-dim", 256, "--heads", 4, "--length", 4096, 512, "--batch", 3)
    assert code == 0
    assert data["sizes"] == {
        "embed_dim": 256,
        "heads": 4,
        "head_dim": 64,
        "batch": 3,
        "dtype": "float32",
        "causal": True,
        "lengths": [512, 4096],
    }
    assert data["complete"] is True
    assert [row["name"] for row in data["families"]] == list(FAMILIES)
    for row in data["families"]:
        kind = FAMILIES[row["name"]]
        assert row["support"] == {name: getattr(kind.support, name) for name in kind.support.__dataclass_fields__}
        assert row["runs_as_asked"] is kind.support.causal
        assert row["paper"] == kind.paper
        assert [cell["length"] for cell in row["at"]] == ([512, 4096] if kind.support.causal else [])
        for cell in row["at"]:
            cost = estimate_cost(row["name"], Sizes(cell["length"], batch=3, heads=4))
            for name in ("forward", "backward", "projections", "activations", "steps", "growth", "exponent"):
                assert cell[name] == getattr(cost, name)
            assert cell["cache"] == (cost.cache if kind.support.cached else None)
            assert cell["measured"] is None
    assert data["families"][0]["less_work_from"] is None
    (window,) = [row for row in data["families"] if row["name"] == "window"]
    assert window["less_work_from"] == break_even("window", Sizes(1, heads=4))


def test_it_tells_people(capfd):
    assert run(["variants", "--length", "1,024", "--family", "window", "talking_heads", "latent"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("one layer: 8 heads of 64, batch 1, float32, each token sees itself and those before")
    assert "work 1.00 = 1.61 G at 1,024" in lines[1]
    table = [line.split("  ") for line in lines[3:8]]
    assert [line[0].strip() for line in table] == ["kind", "multi_head", "window", "talking_heads", "latent"]
    window = " ".join(lines[5].split())
    assert window == "window O(n w) 0.81 1.05 MB (fixed) 257 cb-mt"
    assert "never" in lines[6]
    assert (
        "window: every query weighs its own key and the 255 nearest on each side; gives up all that is 256 tokens away"
        in out
    )
    assert "--measure times every kind" in out


def test_both_ways_and_training(told):
    _, data, _ = told("variants", "--bidirectional", "--train", "--length", 600)
    assert data["step"] == "train"
    assert data["sizes"]["causal"] is False
    for row in data["families"]:
        able = FAMILIES[row["name"]].support.bidirectional
        assert row["runs_as_asked"] is able
        assert [c["forward"] for c in row["at"]] == [
            estimate_cost(row["name"], Sizes(600, causal=False)).forward
        ] * able


@pytest.mark.parametrize("sort", ["work", "cache", "growth", "break-even", "time"])
def test_rows_are_sorted(told, sort):
    names = ["multi_query", "window", "talking_heads"]
    asked = ["variants", "--length", 64, "--embed-dim", 16, "--heads", 2, "--sort", sort, "--family", *names]
    _, data, _ = told(*asked, *(["--measure"] if sort == "time" else []))
    assert {row["name"] for row in data["families"]} == {"multi_head", *names}
    by = {
        "work": lambda row, cell: cell["forward"] + cell["projections"],
        "cache": lambda row, cell: cell["cache"],
        "growth": lambda row, cell: cell["exponent"],
        "break-even": lambda row, cell: row["less_work_from"] or 1e99,
        "time": lambda row, cell: cell["measured"]["seconds"],
    }[sort]
    keys = [by(row, row["at"][-1]) for row in data["families"]]
    assert keys == sorted(keys)


def test_it_times_this_machine(told, capfd):
    asked = ["variants", "--embed-dim", "16", "--heads", "2", "--length", "32", "64", "--measure", "--family", "window"]
    code, data, err = told(*asked)
    assert code == 0
    assert "of 4 timings" in err
    for row in data["families"]:
        for cell in row["at"]:
            assert cell["skipped"] is None
            assert 0 < cell["measured"]["least"] <= cell["measured"]["seconds"] <= cell["measured"]["most"]
    assert run([*asked, "--train"]) == 0
    out = capfd.readouterr().out
    assert "ms 64" in out
    assert "faster from" in out
    assert "a forward and a backward pass" in out


def pretend(monkeypatch, seconds):
    """Timings that take no time; `seconds` of the name and the length."""

    def measure(family, sizes, *, step, rounds, limit):
        taken = seconds(family, sizes.q_len)
        return MeasuredCost(
            family=family, sizes=sizes, step=step, seconds=taken, least=taken, most=taken, rounds=1, threads=1
        )

    monkeypatch.setattr(door, "measure_cost", measure)


def test_where_it_is_faster_here(told, monkeypatch, capfd):
    pretend(monkeypatch, lambda family, n: n**2 / 1e9 if family == "multi_head" else n * 1024 / 1e9)
    asked = ["variants", "--measure", "--length", "512", "2048", "--family", "window", "talking_heads"]
    _, data, _ = told(*asked)
    found = {row["name"]: row["faster_from"] for row in data["families"]}
    assert found["multi_head"] is None
    assert found["window"] == pytest.approx(1024)
    pretend(monkeypatch, lambda family, n: 1e-3 if family != "talking_heads" else 2e-3)
    assert run(asked) == 0
    assert "not so far" in capfd.readouterr().out


def test_what_takes_longer_than_the_limit_is_left_out(told, monkeypatch, capfd):
    pretend(monkeypatch, lambda family, n: n**2 / 1e6)
    asked = ["variants", "--measure", "--limit", "2", "--length", "512", "8192", "--family", "window"]
    _, data, _ = told(*asked)
    short, long = data["families"][0]["at"]
    assert short["measured"]["seconds"] == pytest.approx(512**2 / 1e6)
    assert long["measured"] is None
    assert "s, more than --limit leaves" in long["skipped"]
    assert run(asked) == 0
    out = capfd.readouterr().out
    assert "left out" in out
    assert "multi_head at 8,192: about" in out


def test_memory_that_ends_is_said_and_other_faults_are_not_hidden(told, monkeypatch):
    def fail(words):
        def measure(*_, **__):
            raise RuntimeError(words)

        monkeypatch.setattr(door, "measure_cost", measure)
        return told("variants", "--measure", "--length", 64, "--family", "window")

    _, data, _ = fail("[enforce fail at alloc_cpu.cpp] can't allocate memory: you tried to allocate 1 bytes")
    assert {cell["skipped"] for row in data["families"] for cell in row["at"]} == {"more memory than there is"}
    with pytest.raises(RuntimeError, match="shape"):
        fail("a shape is wrong")


def test_ctrl_c_keeps_what_was_timed(told, monkeypatch):
    def seconds(family, n):
        if family == "window":
            raise KeyboardInterrupt
        return 1e-3

    pretend(monkeypatch, seconds)
    code, data, _ = told("variants", "--measure", "--length", 64, "--family", "window")
    assert code == 130
    assert data["complete"] is False
    base, window = data["families"]
    assert base["at"][0]["measured"]["seconds"] == 1e-3
    assert (window["at"][0]["measured"], window["at"][0]["skipped"]) == (None, "interrupted")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (["--embed-dim", "100", "--heads", "8"], "--embed-dim 100 --heads 8"),
        (["--heads", "0"], "--heads 0"),
        (["--embed-dim", "-8"], "--embed-dim -8"),
        (["--length", "0"], "--length 0"),
        (["--length", "1024", "-1"], "--length -1"),
        (["--length", str(2**70)], f"--length {2**70}"),
        (["--length"], "--length with none"),
        (["--family"], "--family with none"),
        (["--heads", str(2**41)], f"--heads {2**41}"),
        (["--length", "12.5"], "'12.5' is not a whole number"),
        (["--length", "10,24"], "'10,24' is not a whole number"),
        (["--batch", "0"], "--batch 0"),
        (["--batch", str(2**70)], f"--batch {2**70}"),
        (["--batch", "two"], "'two' is not a whole number"),
        (["--dtype", "int8"], "int8"),
        (["--family", "windows"], "windows"),
        (["--limit", "0"], "--limit 0"),
        (["--limit", "nan"], "--limit nan"),
        (["--limit", "-1"], "--limit -1"),
        (["--sort", "time"], "--sort time without --measure"),
        (["--sort", "colour"], "colour"),
        (["--colour"], "--colour"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(told, capfd, fault, says):
    code, data, err = told("variants", *fault)
    assert code == 2
    assert data.keys() == {"error"}
    assert says in data["error"]["arrived"]
    assert data["error"]["remedy"]
    assert "Traceback" not in err
    assert run(["variants", *fault]) == 2
    assert says in capfd.readouterr().err


def test_sizes_that_no_machine_holds_are_counted_all_the_same(told):
    code, data, _ = told("variants", "--length", str(2**40), "--heads", str(2**40), "--embed-dim", str(2**40))
    assert code == 0
    base = data["families"][0]["at"][0]
    pairs = 2**40 * (2**40 + 1) // 2
    assert base["forward"] == 2 * pairs * 2**40  # a whole number of any length, not a rounded one
    assert told("variants", "--measure", "--batch", str(2**40), "--family", "window")[0] == 2


def test_an_unknown_kind_is_told_the_nearest(told):
    _, data, _ = told("variants", "--family", "windows")
    assert data["error"]["remedy"] == "perhaps 'window'"


def test_help_teaches(capfd):
    assert run(["variants", "--help"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    for words in ("Try it: multihead variants", "work 0.50 is half of them", "Exit codes", "--bidirectional"):
        assert words in out
