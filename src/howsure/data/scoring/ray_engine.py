"""The same shards on a Ray cluster: every worker has the model and takes the next free shard.

Workers read their rows from the source themselves, and send scores back; this process writes them.
A worker that dies is replaced and its shard computed again.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from howsure.data.scoring.scorer import Scorer, Shard


def on_ray(scorer: Scorer, todo: list[range], address: str | None) -> Iterator[tuple[range, Shard]]:
    """The shards of these rows, in the order in which they are done."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError("This engine needs Ray: `pip install 'howsure[ray]'`.")
    import ray  # pyright: ignore[reportMissingImports]
    import ray.data  # pyright: ignore[reportMissingImports]

    with _connected(ray, address):
        shared = ray.put(scorer)  # held here, so that a new worker can fetch it as well
        cores = int(ray.cluster_resources().get("CPU", 1))
        work = ray.data.from_items(
            [{"start": rows.start, "stop": rows.stop} for rows in todo],
            override_num_blocks=len(todo),
        )
        work.context.enable_progress_bars = False
        scored = work.map_batches(
            _Worker,
            fn_constructor_args=(shared,),
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(cores, len(todo)))),
        )
        for row in scored.iter_rows():
            if row["refusal"]:
                raise ValueError(row["refusal"])
            yield range(row["start"], row["stop"]), Shard.read(io.BytesIO(row["shard"]))


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """The cluster at the address; one that was connected before stays connected."""
    if ray.is_initialized():
        yield
        return
    # Workers on this machine find the modules that this process finds, the model's among them.
    found = {} if address else {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    ray.init(address=address, log_to_driver=False, logging_level="warning", runtime_env=found)
    try:
        yield
    finally:
        ray.shutdown()


class _Worker:
    """A process of the cluster, with a model of its own."""

    def __init__(self, scorer: object) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(1)  # a core for each worker
        self.scorer: Scorer = ray.get(scorer)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[object]]:
        """One shard as the bytes of its file, or the sentence that refuses it.

        Raised here, the sentence would drown in the traces of the cluster.
        """
        start, stop = int(batch["start"][0]), int(batch["stop"][0])
        shard, refusal = b"", ""
        try:
            shard = self.scorer.shard(range(start, stop)).to_bytes()
        except (ValueError, TypeError, NotImplementedError) as error:
            refusal = str(error)
        return {"start": [start], "stop": [stop], "shard": [shard], "refusal": [refusal]}
