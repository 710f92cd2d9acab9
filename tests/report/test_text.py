"""How numbers are written."""

import numpy as np
import pytest

from diffeqformer.report.text import counted, depths, digits, factor, number, ranges, signed, with_spread


@pytest.mark.parametrize(
    ("times", "written"),
    [
        ([0, 1 / 3, 2 / 3, 1], ["0", "1/3", "2/3", "1"]),
        ([0, 1 / 3 + 1e-3, 2 / 3, 1], ["0.000", "0.334", "0.667", "1.000"]),
        ([0, 1], ["0.000", "1.000"]),
        ([0.0], ["0.000"]),
    ],
)
def test_depths_of_equal_steps_are_fractions(times, written):
    assert depths(np.array(times, np.float32).tolist()) == written


def test_numbers_in_a_row_are_written_by_their_ends():
    assert ranges([16, 2, 3, 4, 5, 11]) == "2 to 5, 11 and 16"
    assert (ranges((2, 3)), ranges((2, 4, 6)), ranges([7])) == ("2 and 3", "2, 4 and 6", "7")


def test_sizes_have_three_digits():
    assert [digits(x) for x in (0.1, 17.0, 123.4, 0.99996, 1234.5, 2e-9, 0.0)] == [
        "0.100", "17.0", "123", "1.00", "1.23e+03", "2e-09", "0"
    ]  # fmt: skip


def test_factors_are_written_as_in_prose():
    assert [factor(x) for x in (1.5, 999.6, 8103.0, 2.5e5, 1.234e7)] == ["1.5", "1,000", "8,100", "250,000", "1.23e+07"]


def test_what_is_rounded_to_zero_has_no_sign():
    assert number(-0.0004, 3) == "0.000" and number(-1.5, 1) == "−1.5" and signed(-0.0004, 2) == "+0.00"


def test_one_of_a_thing_is_written_in_the_singular():
    assert [counted(n, "update") for n in (0, 1, 2, 1500)] == ["0 updates", "1 update", "2 updates", "1,500 updates"]


def test_the_spread_of_huge_numbers_is_a_power_of_ten_too():
    assert with_spread([1.0e7, 1.2e7]) == "1.10e+07 ± 1.41e+06"  # not 1,414,213.56
    assert with_spread([21.3, 21.5]) == "21.40 ± 0.14" and with_spread([21.3]) == "21.30"
