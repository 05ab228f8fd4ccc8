"""Step time, from the seconds of sections (embedding, layers, head), pipeline ranks and transfers."""
