"""What settings and options say of themselves."""

import pytest

from diffeqformer.config.bounds import whole_numbers
from diffeqformer.errors import BadInput


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("6", [6]), ("6, 12,24", [6, 12, 24]), ("2-5", [2, 3, 4, 5]), ("3 - 3,1-2", [3, 1, 2]), ("2,2-3,2", [2, 3])],
)
def test_numbers_are_lists_or_ranges(text, numbers):
    assert list(whole_numbers(text, "--steps")) == numbers


@pytest.mark.parametrize("text", ["", "0", "6,", "-3", "4-", "5-2", "1-2-3", "2–5", "1-16385", "a", "1.5"])
def test_what_is_no_list_of_whole_numbers_is_refused(text):
    with pytest.raises(BadInput, match="--steps is .*, but must be whole numbers of at least 1 and at most 16384"):
        whole_numbers(text, "--steps")
