"""What a user is told while the first call looks at a slow model."""

import time

import torch
from torch import nn

import howsure as hs
from howsure import progress


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(3, 1), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


def test_slow_checks_are_announced_once(monkeypatch, capfd):
    monkeypatch.setattr(progress, "SLOW", 0.05)
    sure = hs.Uncertain(Slow(0.06).eval(), 0.01, "gradients")
    sure(torch.ones(2, 3))
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and all("checking once" in line for line in said), said
    sure(torch.ones(2, 3))
    assert capfd.readouterr().err == ""


def test_fast_checks_say_nothing(capfd):
    hs.Uncertain(Slow(0.0).eval(), 0.01, "gradients")(torch.ones(2, 3))
    assert capfd.readouterr().err == ""
