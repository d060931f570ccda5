"""Names, lists and values of a command line."""

from __future__ import annotations

import pytest

from thalweg._base.literals import names_file, parse_argument, split_at_commas


@pytest.mark.parametrize("text", ["mine.py", "mine.py:LION", "a folder/b.py:make(lr=1)"])
def test_names_of_files(text: str) -> None:
    assert names_file(text)


@pytest.mark.parametrize("text", ["Adam", "nn.pytorch:Lion", "a.pyx", "torch.optim:Adam"])
def test_text_without_file_part_does_not_name_a_file(text: str) -> None:
    assert not names_file(text)


def test_commas_in_brackets_and_quotes_stay() -> None:
    text = "Adam, mine.py:make(betas=(0.9, 0.99), name='a,b') ,,Lion"
    expected = ["Adam", "mine.py:make(betas=(0.9, 0.99), name='a,b')", "Lion"]
    assert split_at_commas(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a = (0.9, 1)", (0.9, 1)),
        ("a=sgd", "sgd"),
        ("a=None", None),
        ("a='b c'", "b c"),
    ],
)
def test_values_are_literals_or_words(text: str, value: object) -> None:
    assert parse_argument(text) == ("a", value)


@pytest.mark.parametrize("text", ["a", "a=", "1=2", "a=f(x)", "a=b c"])
def test_texts_that_are_not_arguments_raise(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not NAME=VALUE|is neither a word nor a literal"):
        parse_argument(text)
