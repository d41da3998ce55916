"""Counts the cases of other people's suites and prints them at the end of a run, whatever the number of workers.

A test says with the fixture `tally` which case of which suite it is and which backend runs it. The table then tells how
many ran, passed, or were refused by the backend, with its reasons; and how many tests of this folder were expected to
fail, skipped or left out.
"""

from collections import Counter, defaultdict

import pytest

_HERE = "conformance/"
_LEFT_OUT = pytest.StashKey[Counter]()


@pytest.fixture
def tally(record_property):
    """`tally(suite, backend)` for a case that runs, `tally(suite, backend, reasons)` for one that is refused."""

    def told(suite, backend, refused=()):
        record_property("conformance", [suite, backend, list(refused)])

    return told


def pytest_deselected(items):
    for item in items:
        if _HERE in item.nodeid:
            backend = getattr(getattr(item, "callspec", None), "params", {}).get("backend", "")
            item.config.stash.setdefault(_LEFT_OUT, Counter())[backend] += 1


def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["conformance"] = dict(session.config.stash.get(_LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    # Every worker collects every test, so each leaves out the same ones.
    left = (getattr(node, "workeroutput", None) or {}).get("conformance", {})
    node.config.stash[_LEFT_OUT] = node.config.stash.get(_LEFT_OUT, Counter()) | Counter(left)


def pytest_terminal_summary(terminalreporter, config):
    counts, reasons, others = collected(terminalreporter.stats)
    left = config.stash.get(_LEFT_OUT, Counter())
    others["deselected"] = left.total()
    if not counts and not any(others.values()):
        return
    terminalreporter.section("suites of other projects: passed/ran")
    for line in table(counts, reasons, others):
        terminalreporter.line(line)
    for backend, number in sorted(left.items()):
        terminalreporter.line(f"  deselected {number} of {backend or 'no backend'}")


def collected(stats):
    """What the reports of a run say: outcomes of each suite and backend, why it refused, and tests that did not run."""
    counts, reasons, others = defaultdict(Counter), defaultdict(Counter), Counter()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in stats.get(outcome, []):
            if _HERE not in getattr(report, "nodeid", ""):
                continue
            if outcome in ("skipped", "xfailed", "xpassed"):
                others[outcome] += 1
            for name, told in report.user_properties:
                if name == "conformance":
                    suite, backend, refused = told
                    counts[suite, backend]["refused" if refused else outcome] += 1
                    reasons[backend].update(refused)
    return counts, reasons, others


def table(counts, reasons, others):
    """The lines that are printed: a suite each with its backends, then why some refused, then what did not run."""
    suites = defaultdict(list)
    for (suite, backend), found in sorted(counts.items()):
        ran = sum(found.values()) - found["refused"]
        told = f"{backend} {found['passed']}/{ran}" + f" ({found['refused']} refused)" * bool(found["refused"])
        suites[suite].append(told.removeprefix("- "))
    width = max(map(len, suites), default=0)
    for suite, told in suites.items():
        yield f"{suite:{width}}  {', '.join(told)}"
    for backend, why in sorted(reasons.items()):
        for reason, times in why.most_common():
            yield f"  {backend} refused {times}: {reason}"
    told = (f"{others[name]} {name}" for name in ("xfailed", "xpassed", "skipped", "deselected"))
    yield f"of the tests in tests/conformance: {', '.join(told)}"
