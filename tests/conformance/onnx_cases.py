"""Cases of the ONNX backend tests, made in memory from one seed, as torch tensors."""

import functools
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: its inputs by position (None where left out), its attributes, and the outputs wanted by position."""

    name: str
    inputs: list
    attributes: dict
    wanted: list


@functools.cache
def cases(op_type, module, seed):
    """The cases of an operator, those of its function body left out; onnx draws their numbers as it is imported."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # infinities in the cases, on purpose
            __import__(f"onnx.backend.test.case.node.{module}")
    finally:
        np.random.set_state(state)
    from onnx.backend.test.case import node

    made = [case for case in node._NodeTestCases if case.model.graph.node[0].op_type == op_type]
    return {case.name: _case(case) for case in made if not case.name.endswith("_expanded")}


def _case(case):
    node, graph = case.model.graph.node[0], case.model.graph
    (given, wanted) = case.data_sets[0]
    # The data hold what is there only, in the order of the graph.
    given = dict(zip([value.name for value in graph.input], given, strict=True))
    wanted = dict(zip([value.name for value in graph.output], wanted, strict=True))
    return Case(
        name=case.name,
        inputs=[_tensor(given[name]) if name else None for name in node.input],
        attributes={each.name: helper.get_attribute_value(each) for each in node.attribute},
        wanted=[_tensor(wanted[name]) if name else None for name in node.output],
    )


def _tensor(given):
    array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
