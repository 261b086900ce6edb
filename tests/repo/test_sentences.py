"""The check of docstrings and comments finds each kind of sentence that is not plain, and passes plain ones."""

from tests.repo.ci_programs import ci_module

sentences = ci_module("sentences")

LONG = " ".join(["word"] * 26)
BAD = f'''"""Of what was read what matches.

Who asks gets it. Who asks?
"""

LIMIT = 1
"""So many of them."""


class Reader:
    """See `Writer`."""

    def read(self):
        """Read it.

        {LONG}.
        """
        return 1  # {LONG}

    # Whoever reads this
    # has read it twice.
'''
GOOD = '''"""Reader of frames.

| what | is |
|---|---|
| who | whoever asks, and whoever asks whoever asks, with many more words than any sentence may have in a file |

1. What opens a row is its own text?
2. A row that goes on
   is one text.

    Whatever stands in an example is no sentence

`what` is code, as is ``so many words that they would never be allowed in a sentence of any length that can be read``.
A sentence ends here. The next one may again have as many words as one sentence may have, and not one word more. Done.
"""
import os  # noqa: F401 who
'''


def test_each_rule_finds_its_sentence():
    assert [(finding.line, finding.rule) for finding in sentences.findings(BAD)] == [
        (1, "opening"),
        (1, "subject"),
        (7, "opening"),
        (11, "see"),
        (14, "length, 26 words"),
        (18, "length, 26 words"),
        (20, "subject"),
    ]


def test_plain_sentences_tables_rows_and_code_pass_and_a_docstring_that_points_to_its_module_says_nothing():
    assert sentences.findings(GOOD) == []
    text = '"""Reader of frames."""\n\n\nclass Reader:\n    """See the module."""\n'
    assert [finding.rule for finding in sentences.findings(text)] == ["see"]


def test_words_may_change_and_code_may_not():
    code = 'def f(x):\n    """Return x."""\n    return x  # why\n'
    assert sentences.same_code(code, 'def f(x):\n    """Give x back."""\n\n    return x\n')
    assert sentences.same_code('class A:\n    """A."""\n', "class A:\n    pass\n")
    assert not sentences.same_code(code, code.replace("return x", "return -x"))
    assert not sentences.same_code("x = 'a'\n", "x = 'b'\n")
    assert sentences.same_code("x = f'a{y}'\n", "x = f'b{y}'\n", blank_texts=True)
    assert not sentences.same_code("x = f'a{y}'\n", "x = f'a{z}'\n", blank_texts=True)


def test_tests_are_held_to_openings_and_length():
    assert [(finding.line, finding.rule) for finding in sentences.findings_in_tests(BAD)] == [
        (1, "opening"),
        (7, "opening"),
        (14, "length, 26 words"),
        (18, "length, 26 words"),
    ]


PAGE = f"""# Whatever a heading says

So long as it reads. That is plain.

```sh
echo {LONG}
```

- A row with [a link
  over lines](x.md) says it. Who asks gets it.

| table | {LONG} |
|---|---|

{LONG}.

<!-- keys: Limits -->
{LONG}.
<!-- end of keys -->

What is it?
"""


def test_the_running_text_of_a_page_is_read():
    assert [(finding.line, finding.rule) for finding in sentences.findings_in_page(PAGE)] == [
        (3, "opening"),
        (9, "subject"),
        (15, "length, 26 words"),
    ]
