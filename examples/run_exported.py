"""Runs a file that `howsure.export` wrote, without howsure: `python run_exported.py net.onnx`.

An ONNX file needs onnxruntime and numpy, a `.pt2` file torch and numpy. A file with masks as inputs
gets new ones in every call: uniform numbers, of which the file drops those below its rates.
"""

import json
import sys

import numpy as np


def random_inputs(about):
    rng = np.random.default_rng()
    named = (*about["inputs"], *about["masks"])
    return {i["name"]: rng.random(i["shape"]).astype(i["dtype"]) for i in named}


def run_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["howsure"])
    names = [output.name for output in session.get_outputs()]
    found = session.run(None, random_inputs(about))
    return about, dict(zip(names, found, strict=True))


def run_torch(path):
    import torch

    extra = {"howsure.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    about = json.loads(extra["howsure.json"])
    return about, program(*(torch.from_numpy(a) for a in random_inputs(about).values()))


if __name__ == "__main__":
    path = sys.argv[1]
    about, outputs = run_onnx(path) if path.endswith(".onnx") else run_torch(path)
    print(f"howsure {about['howsure']}, method {about['method']}, noise {about['noise']}")
    for name, value in outputs.items():
        print(name, value)
