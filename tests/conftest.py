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


# Tests that share what is slow to make run in one worker, which makes it once; the largest groups begin first.
GROUPS = {"browser": "browser", "memory": "command", "checked": "cli", "smollm2": "smollm2"}


def _params(item):
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        wanted = {*item.fixturenames, *(v for v in _params(item) if type(v) is str)}
        for name in wanted & GROUPS.keys():
            item.add_marker(pytest.mark.xdist_group(GROUPS[name]))


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
