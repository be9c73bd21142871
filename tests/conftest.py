"""What every test shares."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def small_reference_product() -> Iterator[None]:
    """As small as the models of the tests: timing the real one would take most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectune.measure.cost._REFERENCE_WIDTH", 128)
        patch.setattr("spectune.measure.probe._COLD_BYTES", 128)
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_machine() -> Iterator[None]:
    """Tests run beside each other: what is said of other work is no part of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectune.measure.environment._BUSY", float("inf"))
        yield
