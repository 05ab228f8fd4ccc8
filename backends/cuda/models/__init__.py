"""The bundled torch models, one file a family."""
