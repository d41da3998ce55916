"""A module as an ONNX file by torch's own exporter, and what it gives there."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cells.law import Lacking


def exported(module, x, opset=23):
    """The answer under onnxruntime, of a file with one Attention node."""
    import onnxruntime

    with TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "layer.onnx"
        program = torch.onnx.export(module, (x,), opset_version=opset, dynamo=True, verbose=False)
        count = [node.op_type for node in program.model.graph].count("Attention")
        program.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (name,) = [one.name for one in session.get_inputs()]
        result = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
    if count != 1:
        raise Lacking(f"it is exported, as {count} Attention nodes")
    return result
