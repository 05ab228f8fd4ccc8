"""The language: text to sentences with places, and sentences back to text."""

from planc.syntax.parse import Tree, parse_text
from planc.syntax.tree import Node, Sentence, Word

__all__ = ["Node", "Sentence", "Tree", "Word", "parse_text"]
