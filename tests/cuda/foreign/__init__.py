"""Modules written for the tests by someone who has not read how modules are read. They stay as they came."""
