"""Error bars in PyTorch Lightning: `Trainer.predict` with a wrapped module.

A `LightningModule` is a model like any other: wrap it, fit it on the validation loader, and let the
trainer predict. Run: `pip install howsure lightning`, `python examples/lightning_predict.py`
"""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs


class Line(pl.LightningModule):
    """Your own module."""

    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, _):
        return (self(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


class WithErrorBars(pl.LightningModule):
    """The recipe: predictions of a wrapped module as a dict of tensors for each batch."""

    def __init__(self, sure):
        super().__init__()
        self.sure = sure

    def predict_step(self, batch, _):
        return self.sure(batch[0]).to_dict(level=0.95)


def loader(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=g)
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(count, 1, generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=100)


def main():
    pl.seed_everything(0)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(max_epochs=20, enable_checkpointing=False, accelerator="cpu", **quiet)
    module = Line()
    trainer.fit(module, loader(1000, 1))
    sure = hs.Uncertain(module.eval(), noise=hs.noise.std(0.05))
    print(sure.fit(loader(300, 2), show_progress=False))
    batches = trainer.predict(WithErrorBars(sure).eval(), loader(200, 3))
    print({name: tuple(value.shape) for name, value in batches[0].items()})


if __name__ == "__main__":
    main()
