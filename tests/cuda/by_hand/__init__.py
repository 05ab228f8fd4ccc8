"""Three programs as an engineer writes them with torch alone, beside which the emitted ones are held."""
