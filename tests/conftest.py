"""Shared by every test: a fresh seed each run (printed, repeatable with --seed), offline hubs, one thread a worker."""

import os
import zlib

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import hypothesis
import jaxtyping
import pytest
import torch

import checked

pytest_plugins = ("conformance.counting",)

# What the import hook of --jaxtyping-packages decorates the functions of multihead with.
jaxtyping.jaxtyped = checked.jaxtyped

hypothesis.settings.register_profile("test", deadline=None, max_examples=25, database=None)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=None, help="seed of the whole run; random when not given")


def pytest_configure(config):
    shared = getattr(config, "workerinput", {}).get("seed")
    given = config.getoption("--seed")
    config.run_seed = shared if shared is not None else given if given is not None else int.from_bytes(os.urandom(4))
    torch.set_num_threads(1)


# Files that share what is slow to make (a browser, a tokenizer, a process to fork, checkups) run in one worker, which
# makes it once; the largest begin first. By file, as xdist 3.8 does not see its own groups under pytest 9.2.
TOGETHER = {
    "command": (
        "journeys/test_checkup_command.py",
        "journeys/test_resume_command.py",
        "journeys/test_public_complaints.py",
        "measure/test_journal.py",
    ),
    "browser": tuple(f"report/test_{name}.py" for name in ("access", "browser", "hands")),
    "tokenizers": tuple(f"corpus/test_{name}.py" for name in ("classes", "placing", "stimulus", "tokens", "words")),
    "memory": ("attend/test_memory.py",),
    "cli": ("cli/test_commands.py", "cli/test_notes.py"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.split("::")[0]
            return next((name for name, files in TOGETHER.items() if path.endswith(files)), nodeid)

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["seed"] = node.config.run_seed


def pytest_report_header(config):
    return f"seed: {config.run_seed} (repeat with --seed {config.run_seed})"


@pytest.fixture(autouse=True)
def seed(request):
    """The seed of this test: another each run, the same under the same --seed."""
    value = (request.config.run_seed + zlib.crc32(request.node.nodeid.encode())) % 2**32
    torch.manual_seed(value)
    return value
