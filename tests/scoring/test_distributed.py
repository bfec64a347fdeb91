"""Two processes, each with its share of the batches, find what one process finds."""

import json

import pytest
import torch
from small_job import PROCESSES
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure import metrics
from howsure.data.distributed import evaluate, share_of
from nets import perceptron

METRICS = {
    "nll": metrics.nll,
    "rmse": metrics.rmse,
    "explained_variance": metrics.explained_variance,
    "ause": metrics.ause,
    "coverage": metrics.coverage.stream(level=0.9),
    "ence": metrics.ence.stream(bins=4),
    "sharpness": metrics.sharpness,
}


def data(rows):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    return TensorDataset(x, perceptron()(x).detach() + 0.1 * torch.randn(rows, 2))


def loader(rows):
    torch.manual_seed(1)
    return DataLoader(data(rows), batch_size=8)


def uncertain(method):
    return hs.Uncertain(perceptron(), noise=0.01, method=method, rate=0.1, samples=4)


def evaluated(rows):
    values = evaluate(uncertain("sampled_adf"), loader(rows), METRICS)
    return {name: value.tolist() for name, value in values.items()}


ROWS = {"many batches": 44, "one batch": 8}


def work(rank, size, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    for name, rows in ROWS.items():
        (folder / f"{name} {rank}").write_text(json.dumps(evaluated(rows)))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder in which two processes have left what they found."""
    folder = tmp_path_factory.mktemp("together")
    processes = [PROCESSES.Process(target=work, args=(rank, 2, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    return folder


@pytest.mark.parametrize("name", ROWS)
def test_both_processes_find_what_one_finds(name, together):
    one, two = (json.loads((together / f"{name} {rank}").read_text()) for rank in range(2))
    assert one == two
    alone = evaluated(ROWS[name])
    assert set(one) == set(alone)
    for metric, value in alone.items():
        assert one[metric] == pytest.approx(value, rel=1e-9), metric


def test_a_stream_of_the_user_keeps_its_state():
    stream = metrics.rmse.stream()
    for _ in range(2):
        value = evaluate(uncertain("adf"), loader(44), {"rmse": stream})["rmse"]
    assert value == evaluate(uncertain("adf"), loader(44), {"rmse": metrics.rmse})["rmse"]
    assert len(stream.rows) == 0


def test_alone_it_is_the_metrics_of_all_predictions():
    sure = uncertain("sampled_adf")
    values = evaluate(sure, loader(44), METRICS)
    prediction = sure.predict(loader(44), show_progress=False)
    target = torch.cat([target for _, target in loader(44)])
    mean, var = prediction.mean, prediction.total_var
    torch.testing.assert_close(values["nll"], metrics.nll(mean, var, target))
    torch.testing.assert_close(values["coverage"], metrics.coverage(mean, var, target, level=0.9))
    torch.testing.assert_close(values["ause"], metrics.ause((mean - target).abs(), prediction.std))


def test_classes():
    sure = hs.Uncertain(perceptron(), 0.01, "sampled_adf", rate=0.1, task="classification")
    x, labels = torch.randn(20, 3), torch.randint(0, 2, (20,))
    batches = [(x[:12], labels[:12]), (x[12:], labels[12:])]
    found = evaluate(sure, batches, {"ece": metrics.ece, "accuracy": metrics.accuracy})
    assert found["accuracy"] == metrics.accuracy(sure(x).mean, labels)
    assert 0 <= found["ece"] <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_every_batch_goes_to_one_process(size):
    for batches in (loader(44), list(loader(44))):
        shares = [list(share_of(batches, rank, size)) for rank in range(size)]
        again = [shares[i % size][i // size] for i in range(6)]
        assert sum(map(len, shares)) == 6
        assert all(torch.equal(a[0], b[0]) for a, b in zip(again, loader(44), strict=True))


def test_what_processes_would_not_agree_on_is_refused():
    shuffled = DataLoader(data(20), batch_size=4, shuffle=True)
    with pytest.raises(ValueError, match="RandomSampler; processes would not agree"):
        share_of(shuffled, 0, 2)
    with pytest.raises(ValueError, match="no batches"):
        share_of(DataLoader(data(20), batch_size=None), 0, 2)
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(uncertain("adf"), [], METRICS)
    with pytest.raises(ValueError, match="`auroc` needs `score`"):
        evaluate(uncertain("adf"), loader(8), {"auroc": metrics.auroc})


def test_an_error_in_the_loader_is_not_taken_for_its_end():
    def breaks():
        yield from loader(8)
        raise ValueError("the disk is gone")

    with pytest.raises(ValueError, match="the disk is gone"):
        evaluate(uncertain("adf"), breaks(), METRICS)
