"""Rules on other systems' files: raised while one is imported or exported."""
