"""What counts as a sentence that a user may read."""

from campaigns.sentences import of_code, of_page

CODE = '''"""Nobody prints a docstring here."""
import click

HEAD = "one two"
SQL = """a = 1
b = 2
c = a plus three more words
d = 4
e = 5
f = 6"""

def f(x):
    """Nor is this one of them printed."""
    return f"the value {x} is too large, " "use a smaller one"

@click.command()
def g():
    """Say what a command is for."""
'''


def test_strings_and_help_of_code_are_sentences_and_docstrings_and_sources_are_none() -> None:
    found = [one.text for one in of_code("x.py", CODE)]
    assert found == ["the value {x} is too large, use a smaller one", "Say what a command is for."]


def test_prose_of_a_page_is_split_and_code_left_out() -> None:
    page = "# A title of words\n\nFirst sentence stands here. The second one follows.\n```\nno prose in here\n```\n"
    found = [one.text for one in of_page("x.md", page)]
    assert found == ["# A title of words", "First sentence stands here.", "The second one follows."]
