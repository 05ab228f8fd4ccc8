"""The language: text to sentences with places, and sentences back to text."""

from planc.syntax.parse import File, parse_text
from planc.syntax.tree import Node, Sentence, Word

__all__ = ["File", "Node", "Sentence", "Word", "parse_text"]
