"""One table, everywhere it is shown: the same cells, numbers to the right, nothing that becomes markup."""

from rich.console import Console

from diffeqformer.report.table import Table

HOSTILE = "</table><script>alert('1')</script>&amp;\"|\u202e"
TABLE = Table("Runs", ("model", "loss", "note"), (("gpt", "−1.25", HOSTILE), ("12", "–", "b")))


def printed(table: Table, width: int) -> list[str]:
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(table.to_rich(width))
    return capture.get().splitlines()


def test_a_column_is_numeric_if_all_of_its_cells_are_and_it_names_no_row():
    assert TABLE.numeric == (False, True, False)
    several = Table("", ("", "a", "b", "c", "d", "e"), [("x", "8.21 ms", "1.2 (1 to 2)", "", "not finite", "ms")])
    assert several.numeric == (False, True, True, True, True, False)


def test_html_escapes_everything_and_marks_numbers():
    html = TABLE.to_html()
    assert "<script" not in html and "\u202e" not in html and "<caption>Runs</caption>" in html
    assert '<th scope="col" class="number">loss</th><th scope="col">note</th>' in html
    assert '<td class="number">−1.25</td>' in html and "caption" not in TABLE.to_html(caption=False)


def test_markdown_has_marks_of_alignment_and_no_stray_bar():
    lines = TABLE.to_markdown().splitlines()
    assert lines[:4] == ["Runs:", "", "| model | loss | note |", "| --- | ---: | --- |"]
    assert lines[4].count("|") - lines[4].count("\\|") == 4 and len(lines) == 6
    assert Table("", ("a",), [("b",)]).to_markdown() == "| a |\n| --- |\n| b |"


def test_a_terminal_too_narrow_repeats_the_first_column():
    table = Table("wide", ("model", *(f"column {i}" for i in range(6))), [("gpt", *("123456" for _ in range(6)))])
    lines = printed(table, 30)
    assert lines[0].strip() == "wide" and sum(line.startswith("gpt") for line in lines) > 1
    assert sum(line.count("123456") for line in lines) == 6 and max(map(len, lines)) <= 30


def test_a_terminal_aligns_text_left_and_numbers_right():
    lines = printed(Table("", ("name", "text", "number"), [("a", "bb", "1"), ("b", "c", "100")]), 80)
    assert lines[1].split("bb")[1].rstrip().endswith("     1") and lines[2].index("c") == lines[1].index("bb")


def test_a_long_name_may_end_a_line_between_its_words():
    html = Table(
        "", ("setting", "value"), (("model.weights.highest_frequency", "runs/a.b"), ("1.5 < x_y", "0.5"))
    ).to_html()
    assert '<th scope="row">model.<wbr>weights.<wbr>highest_<wbr>frequency</th><td' in html and "runs/a.b" in html
    assert '<th scope="row">1.5 &lt; x_<wbr>y</th>' in html
