"""Runs a file that `howsure.export` wrote, without howsure: `python run_exported.py net.onnx`.

An ONNX file needs onnxruntime and numpy, a `.pt2` file torch.
"""

import json
import sys


def run_onnx(path):
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["howsure"])
    rng = np.random.default_rng(0)
    arrays = {i["name"]: rng.random(i["shape"]).astype(i["dtype"]) for i in about["inputs"]}
    names = [output.name for output in session.get_outputs()]
    return about, dict(zip(names, session.run(None, arrays), strict=True))


def run_torch(path):
    import torch

    extra = {"howsure.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    about = json.loads(extra["howsure.json"])
    tensors = [torch.rand(i["shape"], dtype=getattr(torch, i["dtype"])) for i in about["inputs"]]
    return about, program(*tensors)


if __name__ == "__main__":
    path = sys.argv[1]
    about, outputs = run_onnx(path) if path.endswith(".onnx") else run_torch(path)
    print(f"howsure {about['howsure']}, method {about['method']}, noise {about['noise']}")
    for name, value in outputs.items():
        print(name, value)
