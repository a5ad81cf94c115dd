from whichlayers.config.errors import Problem, StudyError, close_match, format_value
from whichlayers.errors import WhichlayersError


def test_one_problem_is_one_line_with_file_and_line():
    error = StudyError([Problem(("a", 0, "b"), "must be 1", "2")], "s.toml", "[[a]]\nb = 2\n")
    assert isinstance(error, WhichlayersError)
    assert str(error) == "s.toml:2: a[0].b = 2: must be 1"


def test_several_problems_are_listed_once_each_in_the_order_of_the_file():
    problems = [Problem(("b",), "second"), Problem(("a",), "first"), Problem(("b",), "second")]
    error = StudyError(problems, "s.toml", "a = 1\nb = 2\n")
    assert str(error).split("\n") == [
        "s.toml has 2 problems:",
        "  s.toml:1: a: first",
        "  s.toml:2: b: second",
    ]
    assert len(error.problems) == 2


def test_close_match_ignores_case_and_is_empty_when_nothing_is_similar():
    assert close_match("train_size", ["trials", "train_sizes"]) == " did you mean `train_sizes`?"
    assert close_match("cola", ["SST-2", "CoLA"]) == " did you mean `CoLA`?"
    assert close_match("zzz", ["SST-2", "CoLA"]) == ""


def test_long_values_are_shortened():
    assert len(format_value("x" * 500)) == 80
