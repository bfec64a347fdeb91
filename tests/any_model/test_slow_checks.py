"""What a user is told while the first call looks at a slow model."""

import subprocess
import sys
import textwrap
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


def test_slow_checks_are_announced_once(monkeypatch, caplog):
    monkeypatch.setattr(progress, "SLOW", 0.05)
    sure = hs.Uncertain(Slow(0.06).eval(), 0.01, "gradients")
    sure(torch.ones(2, 3))
    assert len(caplog.messages) == 2, caplog.messages
    assert all("checking" in line and ", once" in line for line in caplog.messages)
    sure(torch.ones(2, 3))
    assert len(caplog.messages) == 2


def test_fast_checks_say_nothing(capfd, caplog):
    hs.Uncertain(Slow(0.0).eval(), 0.01, "gradients")(torch.ones(2, 3))
    assert capfd.readouterr().err == "" and not caplog.messages


def test_the_line_is_on_stderr_unless_it_is_not_wanted():
    code = """
        import logging, time
        from howsure import progress
        progress.SLOW = 0.01
        for level in ("NOTSET", "ERROR"):
            logging.getLogger("howsure").setLevel(level)
            with progress.say_if_slow(level):
                time.sleep(0.3)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, capture_output=True, text=True).stderr == "NOTSET\n"
