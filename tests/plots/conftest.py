import matplotlib
import pytest

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures_and_keep_settings():
    """No figure outlives its test, and no plot changes matplotlib's settings."""
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure(figsize=(5, 4), layout="constrained").add_subplot()
