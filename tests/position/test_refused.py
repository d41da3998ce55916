"""Numbers and tensors of another kind: refused in words where a position is built, not deep inside of a call."""

import re

import jaxtyping
import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import (
    NTK,
    AdaptiveSpan,
    ALiBi,
    DynamicNTK,
    Llama3,
    RelativeTable,
    Rotary,
    ShawRelative,
    TransformerXLRelative,
    YaRN,
    alibi_slopes,
    sinusoid,
)

NAN, INF = float("nan"), float("inf")
TABLE, META = torch.ones(5, 4), torch.ones(5, 4, device="meta")
U, W = torch.ones(2, 4), torch.ones(8, 6)


def xl(**other):
    return TransformerXLRelative(**{"content": U, "position": U, "projection": W} | other)


@pytest.fixture(autouse=True)
def _unhooked():
    """What a caller gets to read outside of tests, where nothing else checks types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Rotary("a"), "base=a"),
        (lambda: Rotary(None), "base=None"),
        (lambda: Rotary(torch.tensor([1.0, 2.0])), "a rotary base above 1"),
        (lambda: Rotary(dim="a"), "dim=a"),
        (lambda: Rotary(dim=4.0), "dim=4.0"),
        (lambda: Rotary(dim=[4]), "dim=[4]"),
        (lambda: Rotary(scaling=NTK), "Rotary(scaling=...)"),
        (lambda: Rotary(scaling="yarn"), "scaling=str 'yarn'"),
        (lambda: Rotary(scaling=4.0), "scaling=float '4.0'"),
        (lambda: NTK("a"), "factor=a"),
        (lambda: NTK(None), "factor=None"),
        (lambda: DynamicNTK(2.0, None), "trained_length=None"),
        (lambda: DynamicNTK(2.0, 4.5), "trained_length=4.5"),
        (lambda: Llama3(low="a"), "low=a"),
        (lambda: YaRN(torch.ones(2), 4096), "YaRN with a factor of at least 1"),
        (lambda: ALiBi(8), "slopes=int '8'"),
        (lambda: alibi_slopes("a"), "heads=a"),
        (lambda: alibi_slopes(2.5), "heads=2.5"),
        (lambda: alibi_slopes(2**62), "for 65536 at most"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=INF), "ramp=inf"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=NAN), "ramp=nan"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=2.5), "ramp=2.5"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=None), "ramp=None"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=True), "ramp=True"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp="8"), "ramp='8'"),
        (lambda: AdaptiveSpan(torch.ones(2), ramp=2**70), "ramp=118"),
        (lambda: AdaptiveSpan(64.0), "spans=float '64.0'"),
        (lambda: RelativeTable([[1.0]]), "table=list '[[1.0]]'"),
        (lambda: RelativeTable(torch.ones(32, 2), bidirectional="no"), "bidirectional as True or False"),
        (lambda: RelativeTable(torch.ones(32, 2), max_distance=NAN), "max_distance=nan"),
        (lambda: RelativeTable(torch.ones(32, 2), max_distance="a"), "max_distance='a'"),
        (lambda: ShawRelative(keys=None), "keys=NoneType 'None'"),
        (lambda: ShawRelative(keys=[[1.0]]), "keys=list"),
        (lambda: ShawRelative(keys=TABLE, values=3), "values=int '3'"),
        (lambda: ShawRelative(keys=TABLE, values=META), "keys on cpu, values on meta"),
        (lambda: ShawRelative(keys=TABLE, first=1.5), "first=1.5"),
        (lambda: ShawRelative(keys=TABLE, first="-2"), "first='-2'"),
        (lambda: ShawRelative(keys=TABLE, first=2**70), "first=118"),
        (lambda: ShawRelative(keys=TABLE, first=NAN), "first=nan"),
        (lambda: xl(content=None), "content=NoneType 'None'"),
        (lambda: xl(position=[[1.0]]), "position=list"),
        (lambda: xl(projection=3), "projection=int '3'"),
        (lambda: xl(projection=W.long()), "torch.int64 on cpu"),
        (lambda: xl(projection=W.to("meta")), "torch.float32 on meta"),
        (lambda: xl(layout="split_log"), "layout='split_log'"),
        (lambda: xl(layout=None), "layout=None"),
        (lambda: sinusoid(None, 4), "NoneType 'None'"),
        (lambda: sinusoid("a", 4), "str 'a'"),
        (lambda: sinusoid(True, 4), "bool 'True'"),
        (lambda: sinusoid(2.5, 4), "float '2.5'"),
        (lambda: sinusoid(NAN, 4), "float 'nan'"),
        (lambda: sinusoid([0, 1], 4), "list '[0, 1]'"),
        (lambda: sinusoid(2**70, 4), "got: 118"),
        (lambda: sinusoid(-1, 4), "got: -1"),
        (lambda: sinusoid(2, None), "dim=None"),
        (lambda: sinusoid(2, 4.0), "dim=4.0"),
        (lambda: sinusoid(2, NAN), "dim=nan"),
        (lambda: sinusoid(2, 2**70), "dim=118"),
        (lambda: sinusoid(2, True), "dim=True"),
        (lambda: sinusoid(2, 4, layout=None), "layout=None"),
        (lambda: sinusoid(2, 4, layout=["split"]), "layout=['split']"),
        (lambda: sinusoid(2, 4, base=0.0), "base=0.0"),
        (lambda: sinusoid(2, 4, base=-1.0), "base=-1.0"),
        (lambda: sinusoid(2, 4, base=NAN), "base=nan"),
        (lambda: sinusoid(2, 4, base=INF), "base=inf"),
        (lambda: sinusoid(2, 4, base="a"), "base='a'"),
        (lambda: sinusoid(2, 4, dtype="float32"), "dtype as a floating dtype"),
        (lambda: sinusoid(2, 4, dtype=torch.int64), "dtype=torch.int64"),
        (lambda: sinusoid(2, 4, device=2.5), "device as a device"),
    ],
)
def test_numbers_of_another_kind_build_no_position(build, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        build()


SHAW = ShawRelative(keys=TABLE, values=TABLE)
Q = torch.ones(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: SHAW.bias(None), "q=NoneType 'None'"),
        (lambda: SHAW.bias([1.0]), "q=list"),
        (lambda: SHAW.bias(Q.long()), "q (1, 2, 3, 4), torch.int64"),
        (lambda: SHAW.bias(Q[0]), "q (2, 3, 4)"),
        (lambda: SHAW.bias(Q.to("meta")), "on meta"),
        (lambda: SHAW.bias(Q[..., :3]), "q (1, 2, 3, 3), keys (5, 4)"),
        (lambda: SHAW.bias(Q, kv_len=-1), "kv_len=-1"),
        (lambda: SHAW.bias(Q, kv_len=2.0), "kv_len=2.0"),
        (lambda: SHAW.bias(Q, kv_len=2**70), "kv_len=118"),
        (lambda: SHAW.bias(Q, q_offset=None), "q_offset=None"),
        (lambda: SHAW.bias(Q, q_offset=NAN), "q_offset=nan"),
        (lambda: SHAW.bias(Q, q_offset=2**70), "q_offset=118"),
        (lambda: SHAW.bias(Q, scale="a"), "scale='a'"),
        (lambda: SHAW.bias(Q, scale=NAN), "scale=nan"),
        (lambda: SHAW.bias(Q, scale=INF), "scale=inf"),
        (lambda: SHAW.output(None), "weights=NoneType 'None'"),
        (lambda: SHAW.output(Q[0]), "weights (2, 3, 4)"),
        (lambda: SHAW.output(Q, q_offset="a"), "q_offset='a'"),
        (lambda: xl().queries(None), "q=NoneType 'None'"),
        (lambda: xl().queries(Q[:, :1]), "q (1, 1, 3, 4)"),
        (lambda: xl().bias(Q.long()), "torch.int64"),
        (lambda: xl().bias(Q.to("meta")), "on meta"),
        (lambda: xl().bias(Q, kv_len="a"), "kv_len='a'"),
        (lambda: xl().bias(Q, q_offset=0.5), "q_offset=0.5"),
        (lambda: xl().bias(Q, scale=[1.0]), "scale=[1.0]"),
    ],
)
def test_terms_of_another_kind_are_not_made(call, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        call()
