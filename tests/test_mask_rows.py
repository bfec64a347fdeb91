"""Masks for each input, wherever a network keeps the rows of its batch."""

import pytest
import torch
from torch import nn

import howsure as hs
from howsure.multipliers import Multiply, Placement, find_sites

torch.manual_seed(0)


class TimeFirst(nn.Module):
    """Takes (batch, time, features) and turns it inside."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.first, self.cells, self.last = nn.Linear(4, 6), nn.GRU(6, 6), nn.Linear(6, 2)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        hidden = self.drop(self.first(x.transpose(0, 1)).tanh())
        return self.last(self.cells(hidden)[0][-1])


class Frames(nn.Module):
    """An encoder for single frames, then a network over time."""

    def __init__(self, *, time_first=False, drop=0.0):
        super().__init__()
        self.encoder, self.cells = nn.Linear(4, 6), nn.GRU(6, 6, batch_first=True)
        self.last, self.time_first, self.drop = nn.Linear(6, 2), time_first, nn.Dropout(drop)

    def forward(self, x):
        rows, time = x.shape[:2]
        frames = (x.transpose(0, 1) if self.time_first else x).flatten(0, 1)
        features = self.drop(self.encoder(frames).tanh())
        if self.time_first:
            features = features.unflatten(0, (time, rows)).transpose(0, 1)
        else:
            features = features.unflatten(0, (rows, time))
        return self.last(self.cells(features)[0][:, -1])


def transformer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten())


NETS = {
    "time first inside": TimeFirst,
    "frames of a row side by side": Frames,
    "rows of a frame side by side": lambda: Frames(time_first=True),
    "transformer": transformer,
}
TIME = 5


@pytest.fixture(params=NETS)
def net(request):
    torch.manual_seed(1)
    return NETS[request.param]().eval()


# As many rows as steps, as rows times points of a check, fewer and more.
@pytest.mark.parametrize("rows", [1, 2, 3, TIME, 8, 20])
def test_every_row_has_its_own_masks(net, rows):
    x = torch.randn(rows, TIME, 4)
    sites = find_sites(net, x, Placement("after"))
    masks = [torch.rand(rows, *site.units) for site in sites]
    with torch.no_grad(), Multiply(net, sites, masks):
        together = net(x)
    for row in range(rows):
        with torch.no_grad(), Multiply(net, sites, [mask[row] for mask in masks]):
            torch.testing.assert_close(together[row], net(x[row : row + 1])[0])


@pytest.mark.parametrize("rows", [1, 2, TIME])
def test_sites_do_not_depend_on_the_number_of_rows(net, rows):
    many = find_sites(net, torch.randn(7, TIME, 4), Placement("after", units="element"))
    assert find_sites(net, torch.randn(rows, TIME, 4), Placement("after", units="element")) == many


@pytest.mark.parametrize(
    ("made", "units"),
    [
        (TimeFirst, (TIME, 6)),
        (Frames, (6,)),
        (lambda drop: Frames(time_first=True, drop=drop), (6,)),
    ],
)
def test_dropout_of_the_model_itself_finds_its_rows(made, units):
    made = made(drop=0.3).eval()
    x = torch.randn(TIME, TIME, 4)
    (site,) = find_sites(made, x, Placement("existing"))
    assert site.units == units
    mask = torch.rand(TIME, *units)
    with torch.no_grad(), Multiply(made, [site], [mask]):
        together = made(x)
    for row in range(TIME):
        with torch.no_grad(), Multiply(made, [site], [mask[row]]):
            torch.testing.assert_close(together[row], made(x[row : row + 1])[0])


def test_such_networks_have_a_posterior(net):
    torch.manual_seed(2)
    x = torch.randn(64, TIME, 4)
    y = net(x).detach()
    y = y + 0.1 * torch.randn_like(y)
    sure = hs.Uncertain(net, 0.01)
    found = sure.fit(list(zip(x.split(8), y.split(8), strict=True)), show_progress=False)
    assert type(found).__name__ == "PosteriorFit"
    whole = sure(x[:6])
    alone = torch.cat([sure(x[row : row + 1]).total_var for row in range(6)])
    torch.testing.assert_close(whole.total_var, alone, rtol=1e-4, atol=0)


def test_a_mask_for_each_row_is_refused_where_the_rows_share_a_layer():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.place, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(x + self.place(torch.arange(TIME)[:, None].float()))

    made, x = Positions().eval(), torch.randn(3, TIME, 4)
    (site,) = find_sites(made, x, Placement("after"))
    assert site.batch.dim is None
    each = Multiply(made, [site], [torch.ones(3, 4)])
    with pytest.raises(ValueError, match="All inputs of a batch share the output of `place`"), each:
        made(x)


def test_rows_on_another_axis():
    torch.manual_seed(3)
    cells = nn.GRU(4, 6)

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.last = cells, nn.Linear(6, 2)

        def forward(self, x):  # (time, batch, features)
            return self.last(self.cells(x)[0])

    made, x = Steps().eval(), torch.randn(TIME, 3, 4)
    for units in ("auto", "element"):
        (site,) = find_sites(made, x, Placement("after", units=units), batch_dim=1)
        mask = torch.rand(3, *site.units)
        with torch.no_grad(), Multiply(made, [site], [mask]):
            together = made(x)
        for row in range(3):
            with torch.no_grad(), Multiply(made, [site], [mask[row]]):
                torch.testing.assert_close(together[:, row], made(x[:, row : row + 1])[:, 0])
