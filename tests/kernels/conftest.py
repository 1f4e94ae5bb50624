import pytest

from torch_dataloader_utils.kernels import compiled, rows


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that move rows by the compiled library, then by numpy and Arrow."""
    if request.param and not compiled():
        pytest.skip("there was no C compiler when the package was installed")
    if not request.param:
        monkeypatch.setattr(rows, "library", lambda: None)
