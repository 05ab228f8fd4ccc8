"""The language: parses text to sentences with spans (file, line and columns), and formats sentences as text."""

from planc.syntax.parse import Tree, parse_text
from planc.syntax.tree import Node, Sentence, Word

__all__ = ["Node", "Sentence", "Tree", "Word", "parse_text"]
