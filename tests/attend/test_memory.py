"""Memory that holds no matrix of weights, measured in a process of its own; what importing the room costs."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, re, sys, torch
from multihead.attend import Softmax, attention, attention_lse
from multihead.pattern import causal, sliding_window
from multihead.position import RelativeTable
torch.set_num_threads(1)

def measure(run):
    # Linux forgets the highest mark when 5 is written here.
    open("/proc/self/clear_refs", "w").write("5")
    before = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
    run()
    return (int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) - before) / 1024

n = 4096
q, k, v = (torch.randn(1, 8, n, 16) for _ in range(3))
mask = torch.rand(1, 1, n, n) < 0.5
attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], mask=sliding_window(9))
attended = attention_lse(q, k, v)
grown = {
    "plain": measure(lambda: attention(q, k, v, mask=causal())),
    "weights": measure(lambda: attended.weights(rows=range(0, n, 64), heads=[0, 5])),
    "shared mask": measure(lambda: attention(q, k, v, mask=mask)),
    "window": measure(lambda: attention(q, k, v, mask=sliding_window(256))),
}
table = torch.randn(32, 2, requires_grad=True)
options = dict(mask=causal(), softcap=30.0, dropout=0.1, bias=RelativeTable(table), normaliser=Softmax(off_by_one=True))

def train(n):
    q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for _ in range(3))
    attention(q, k, v, backend="tiled", **options).sum().backward()

train(512)
grown["tiled, 1536 tokens"] = measure(lambda: train(1536))
grown["tiled, 3072 tokens"] = measure(lambda: train(3072))
print(json.dumps({"grown": grown, "compiler": "torch._dynamo" in sys.modules}))
"""


@pytest.fixture(scope="module")
def measured():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("what", "most"),
    # One matrix of all heads in float32 takes 512 MiB here, one of a single head 64 MiB.
    [("plain", 32), ("weights", 32), ("shared mask", 48), ("window", 32)],
)
def test_20_21_25_34_memory_holds_no_matrix(measured, what, most):
    assert measured["grown"][what] < most, measured


def test_memory_of_tiled_forward_and_backward_does_not_grow_with_the_matrix(measured):
    """From 1536 to 3072 tokens a matrix of these weights grows by 54 MiB, and plain autograd holds a dozen of them."""
    grown = measured["grown"]
    assert grown["tiled, 3072 tokens"] < 120, measured
    assert grown["tiled, 3072 tokens"] - grown["tiled, 1536 tokens"] < 40, measured


def test_importing_and_calling_do_not_load_the_compiler(measured):
    assert measured["compiler"] is False
