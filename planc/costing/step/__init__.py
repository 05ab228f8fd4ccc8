"""Step time: combine the seconds of sections, pipeline ranks and transfers."""
