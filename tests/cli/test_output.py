"""Tables in a terminal: what does not fit goes on below, and no number is broken."""

from diffeqformer.cli.output import print_table


def printed(capsys, columns, rows, title="A title") -> list[str]:
    print_table(title, columns, rows)
    return capsys.readouterr().out.splitlines()


def test_a_table_that_fits_is_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert [line.split() for line in printed(capsys, ["name", "a b"], [["x", "1.5"]])] == [
        ["A", "title"], ["name", "a", "b"], ["x", "1.5"],
    ]  # fmt: skip


def test_headers_are_broken_at_spaces_before_a_table_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    lines = printed(capsys, ["name", "rank correlation", "long header"], [["x", "1.5", "2.5"]])
    assert [line.split() for line in lines[1:]] == [["rank", "long"], ["name", "correlation", "header"],
                                                    ["x", "1.5", "2.5"]]  # fmt: skip


def test_a_wide_table_goes_on_below_with_its_first_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cell = "0.546 [0.530, 0.561]"
    lines = printed(capsys, ["method", "one", "two", "three"], [["occlusion", cell, cell, cell]])
    assert sum(line.startswith("occlusion") and line.count(cell) == 1 for line in lines) == 3
    assert max(map(len, lines)) <= 40 and sum("A title" in line for line in lines) == 1
