"""Colours of code, light; page.css has those of the dark page."""

from pygments.style import Style
from pygments.token import Comment, Keyword, Name, Number, Operator, String


class Light(Style):
    """Few colours, all of them readable on the page's ground."""

    background_color = "#eef2f6"
    styles = {  # noqa: RUF012 - as Pygments wants it
        Comment: "#5d6975",
        Keyword: "#2459a0",
        Name.Decorator: "#2459a0",
        Number: "#8a3f10",
        String: "#1d6640",
        Operator.Word: "#2459a0",
    }
