"""Run in a process of its own by test_fork.py: a kernel that ran on several threads runs in forks of its process.

The children are forked in a row, each from the one before, and each says what it got.
"""

import os
import sys

import torch

from multihead.attend import attention, make_problem, native
from multihead.native import load

torch.set_num_threads(4)
q, k, v = torch.randn(3, 1, 8, 256, 64)
before = [attention(q, k, v, backend="native", scale=0.1), native.run(make_problem(q, k, v))[0]]
assert load().threads() == 4
told, telling = os.pipe()
for _ in range(2):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        break
    # Known before the fork, and not; on as many threads as there are, and on so many that are asked for.
    after = [attention(q, k, v, backend="native", scale=0.1), native.run(make_problem(q, k, v))[0]]
    with native.forced(threads=3):
        after.append(native.run(make_problem(q, k, v))[0])
    # Not torch.equal: it would wait for ever.
    same = all((one.numpy() == due.numpy()).all() for one, due in zip(after, [*before, before[1]], strict=True))
    os.write(telling, f"{same} {load().threads()} {native.how(make_problem(q, k, v)).count('1 thread')}\n".encode())
else:
    os._exit(0)
if child and os.getpid() == os.getsid(0):
    os.close(telling)
    sys.stdout.write(os.read(told, 1000).decode())
    assert load().threads() == 4
sys.stdout.flush()
os._exit(0)
