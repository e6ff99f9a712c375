"""Names that are made unique while functions are inlined."""

from __future__ import annotations

import pytest

from hetero_core.network.scopes import make_unique


class CountingSet(set[str]):
    """A set that counts how often it is asked."""

    questions = 0

    def __contains__(self, name: object) -> bool:
        self.questions += 1
        return super().__contains__(name)


@pytest.mark.parametrize("taken_count", [0, 1, 2, 3, 7, 8, 1000])
def test_first_free_number_is_used(taken_count: int) -> None:
    used_names = {"w", *(f"w_{number}" for number in range(1, taken_count + 1))}
    assert make_unique("w", used_names) == f"w_{taken_count + 1}"


def test_number_is_free_where_others_are_taken_out_of_order() -> None:
    used_names = {"w", "w_1", "w_2", "w_4", "w_5"}
    assert make_unique("w", used_names) not in used_names


def test_few_names_are_tried_where_ten_thousand_are_taken() -> None:
    used_names = CountingSet({"w", *(f"w_{number}" for number in range(1, 10_000))})
    assert make_unique("w", used_names) == "w_10000"
    assert used_names.questions < 40
